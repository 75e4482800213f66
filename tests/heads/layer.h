// Layer: W_Q, W_K, W_V, a head, W_O, in any float dtype and with the whole backward; for tests alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/heads/run.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/projection/backward.h"
#include "tests/support/random_rows.h"

namespace headwise::test {

/// How a layer is called.
struct HeadSetting {
  std::string name;
  Index batch = 2, q_tokens = 5, kv_tokens = 5;
  Mask mask = {};
  std::vector<Index> q_lengths = {}, kv_lengths = {};  // ragged when given
  bool cross = false;                                  // keys and values come from rows of their own
  double dropout = 0;
  Index head_budget = 0;

  bool ragged() const { return !q_lengths.empty(); }
  Index outer() const { return ragged() ? 1 : batch; }
  Index q_rows() const { return ragged() ? offsets_of(q_lengths).back() : q_tokens; }
  Index kv_rows() const { return ragged() ? offsets_of(kv_lengths).back() : kv_tokens; }
};

class Layer {
 public:
  Layer(std::string_view head, DType dtype, Place place, std::uint64_t seed = 1)
      : params_(dtype, seed), place_(place), head_(make(head)) {
    const Widths n = head_.widths();
    const double size = 1 / std::sqrt(static_cast<double>(place.model_dim));
    const auto matrix = [&](const char* name, Index rows, Index columns) {
      return params_.add(name, {rows, columns}, Init::normal(size));
    };
    wq_ = matrix("w_q", n.q, place.model_dim), wk_ = matrix("w_k", n.k, place.model_dim);
    wv_ = matrix("w_v", n.v, place.model_dim);
    if (n.out > 0) wo_ = matrix("w_o", place.model_dim, n.out);
    params_.make_grads();
  }
  ParamSet& params() { return params_; }
  const AnyHead& head() const { return head_; }
  const HeadCall& call() const { return run_->call; }
  Tensor dx, dx_kv;  // of the last backward

  /// x [outer q_rows model_dim], x_kv likewise (ignored without s.cross); the layer's output.
  Tensor forward(const HeadSetting& s, const InputView& x, const InputView& x_kv, Context& ctx) {
    setting_ = &s;
    x_ = x, x_kv_ = s.cross ? x_kv : x;
    AttentionProblem sizes{.dtype = x.dtype,
                           .batch = s.batch,
                           .q_tokens = s.q_tokens,
                           .kv_tokens = s.kv_tokens,
                           .ragged = s.ragged()};
    sizes.heads.terms.dropout = s.dropout != 0;
    if (s.ragged()) {
      sizes.batch = static_cast<Index>(s.q_lengths.size());
      sizes.q_tokens = *std::max_element(s.q_lengths.begin(), s.q_lengths.end());
      sizes.kv_tokens = *std::max_element(s.kv_lengths.begin(), s.kv_lengths.end());
      sizes.q_total = s.q_rows(), sizes.kv_total = s.kv_rows();
      q_offsets_ = tensor_of(offsets_of(s.q_lengths)), kv_offsets_ = tensor_of(offsets_of(s.kv_lengths));
    }
    const Widths n = head_.widths();
    const auto rows = [&](Index tokens, Index columns) {
      return Tensor(x.dtype, {s.outer(), tokens, columns});
    };
    q_ = rows(s.q_rows(), n.q), k_ = rows(s.kv_rows(), n.k), v_ = rows(s.kv_rows(), n.v);
    project_to(x_, wq_, q_, ctx), project_to(x_kv_, wk_, k_, ctx), project_to(x_kv_, wv_, v_, ctx);

    run_ = std::make_unique<HeadRun>(head_, sizes, true);
    HeadCall& c = run_->call;
    c.x = x_, c.x_kv = x_kv_, c.q = q_.view(), c.k = k_.view(), c.v = v_.view();
    c.head_budget = s.head_budget;
    AttentionArgs& a = c.run.forward;
    a.mask = s.mask.set(), a.inputs.dropout = s.dropout, a.inputs.seed = 7;
    if (s.ragged()) a.q_offsets = q_offsets_.view(), a.kv_offsets = kv_offsets_.view();
    kept_ = booked(*run_, &HeadRun::book);
    run_->forward(ctx);

    Tensor y = rows(s.q_rows(), place_.model_dim);
    if (wo_.given())
      project_to(c.y, wo_, y, ctx);
    else
      std::memcpy(y.view().data, c.y.data, static_cast<std::size_t>(y.view().count() * size_of(x.dtype)));
    return y;
  }

  /// Writes dx, dx_kv (without cross: all of it in dx) and adds to the parameters' gradients.
  void backward(const InputView& dy, Context& ctx) {
    HeadCall& c = run_->call;
    const HeadSetting& s = *setting_;
    const Index model = place_.model_dim;
    Tensor inner(dy.dtype, {s.outer(), s.q_rows(), c.y.size[2]});
    if (wo_.given())
      projection_backward(
          {.dy = dy, .x = c.y, .weight = wo_.value(), .dx = inner.view(), .dweight = wo_.grad()}, ctx);
    c.dy = wo_.given() ? inner.view() : dy;
    Tensor dq(dy.dtype, {s.outer(), s.q_rows(), q_.view().size[2]});
    Tensor dk(dy.dtype, {s.outer(), s.kv_rows(), k_.view().size[2]});
    Tensor dv(dy.dtype, {s.outer(), s.kv_rows(), v_.view().size[2]});
    dx = Tensor(dy.dtype, {s.outer(), s.q_rows(), model});
    if (s.cross) dx_kv = Tensor(dy.dtype, {s.outer(), s.kv_rows(), model});
    c.dq = dq.view(), c.dk = dk.view(), c.dv = dv.view();
    c.dx = dx.view(), c.dx_kv = s.cross ? dx_kv.view() : dx.view();
    const Buffer memory = booked(*run_, &HeadRun::book_backward);
    run_->backward(ctx);
    back(c.dq, x_, wq_, c.dx, ctx), back(c.dk, x_kv_, wk_, c.dx_kv, ctx),
        back(c.dv, x_kv_, wv_, c.dx_kv, ctx);
  }

 private:
  AnyHead make(std::string_view head) {
    const auto scope = params_.scope("head");
    return make_head(head, params_, place_);
  }
  static void project_to(const InputView& x, const Learned& w, const InputView& out, Context& ctx) {
    projection({.x = x, .weight = w.value(), .out = out}, Activation::none, ctx);
  }
  static void project_to(const InputView& x, const Learned& w, Tensor& out, Context& ctx) {
    project_to(x, w, out.view(), ctx);
  }
  static void back(const InputView& dy, const InputView& x, const Learned& w, const InputView& dx,
                   Context& ctx) {
    Tensor scratch(dx.dtype, {dx.size[0], dx.size[1], dx.size[2]});
    projection_backward({.dy = dy, .x = x, .weight = w.value(), .dx = scratch.view(), .dweight = w.grad()},
                        ctx);
    for (Index i = 0; i < dx.count(); ++i)
      store_double(dx.data, dx.dtype, i,
                   load_double(dx.data, dx.dtype, i) + load_double(scratch.view().data, dx.dtype, i));
  }
  /// Measures, then hands out memory full of NaN: what is read before it is written shows.
  static Buffer booked(HeadRun& run, void (HeadRun::*book)(Arena&)) {
    Arena count = Arena::measuring();
    HeadRun measured = run;
    (measured.*book)(count);
    Buffer memory(count.used());
    if (memory.size()) std::memset(memory.data(), 0xff, memory.size());
    Arena arena(memory.span());
    (run.*book)(arena);
    EXPECT_EQ(arena.used(), memory.size());
    return memory;
  }

  ParamSet params_;
  Place place_;
  AnyHead head_;
  Learned wq_, wk_, wv_, wo_;
  std::unique_ptr<HeadRun> run_;
  const HeadSetting* setting_ = nullptr;
  AnyView x_, x_kv_;
  Tensor q_, k_, v_, q_offsets_, kv_offsets_;
  Buffer kept_;
};

}  // namespace headwise::test
