#include "headwise/decoder/weights.h"

namespace headwise {
namespace {

/// Goes through all weights of a configuration twice: first to check them, then to read them.
class Loader {
 public:
  Loader(DecoderSource& source, DType dtype, Context& ctx)
      : source_(source), c_(source.config()), dtype_(dtype), ctx_(ctx) {}

  void load(DecoderWeights& w) {
    for (const bool reading : {false, true}) {
      reading_ = reading;
      walk(w);
      if (!reading) source_.check_nothing_left();
    }
  }

 private:
  void walk(DecoderWeights& w) {
    table(w.embed, "embed", c_.vocabulary, c_.model_dim);
    if (c_.learned_positions) table(w.positions, "positions", c_.positions, c_.model_dim);
    w.layers.resize(static_cast<std::size_t>(c_.layers));
    for (Index i = 0; i < c_.layers; ++i)
      layer(w.layers[static_cast<std::size_t>(i)], text("layers.", i, "."));
    norm(w.norm, "norm");
    if (!c_.tied) {
      product(w.head, {{"head", c_.vocabulary}}, c_.model_dim, false);
    } else if (reading_) {
      w.head.matrix = pack_matrix(in_dtype(w.embed).view(), DType::f32, ctx_);
    }
    if (reading_) w.bytes = bytes_of(w);
  }

  void layer(DecoderLayer& l, const std::string& at) {
    const Index d = c_.model_dim, q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
    norm(l.norm_1, at + "norm_1");
    product(l.qkv, {{at + "q", q}, {at + "k", kv}, {at + "v", kv}}, d, c_.qkv_bias);
    if (c_.head_norms) {
      vector(l.q_norm, at + "q_norm.weight", c_.head_dim);
      vector(l.k_norm, at + "k_norm.weight", c_.head_dim);
    }
    product(l.out, {{at + "o", d}}, q, c_.out_bias);
    if (c_.norms_behind) norm(l.behind_1, at + "behind_1");
    norm(l.norm_2, at + "norm_2");
    if (c_.gated) product(l.gate, {{at + "gate", c_.feed_dim}}, d, c_.feed_bias);
    product(l.up, {{at + "up", c_.feed_dim}}, d, c_.feed_bias);
    product(l.down, {{at + "down", d}}, c_.feed_dim, c_.feed_bias);
    if (c_.norms_behind) norm(l.behind_2, at + "behind_2");
  }

  void vector(Tensor& to, const std::string& name, Index size) {
    if (!reading_) return source_.check(name, 0, size);
    to = Tensor(DType::f32, {size});
    source_.read(name, 0, size, to.values<float>().data());
  }
  void table(Tensor& to, const std::string& name, Index rows, Index columns) {
    if (!reading_) return source_.check(name, rows, columns);
    to = Tensor(DType::f32, {rows, columns});
    source_.read(name, rows, columns, to.values<float>().data());
  }
  void norm(NormWeights& to, const std::string& name) {
    vector(to.weight, name + ".weight", c_.model_dim);
    if (c_.norm == NormKind::layer) vector(to.bias, name + ".bias", c_.model_dim);
  }

  struct Part {
    std::string name;
    Index rows;
  };
  /// Parts one under the other, as one matrix.
  void product(ProductWeights& to, std::initializer_list<Part> parts, Index columns, bool bias) {
    const auto weight = [](const Part& p) { return p.name == "head" ? p.name : p.name + ".weight"; };
    if (!reading_) {
      for (const Part& p : parts) {
        source_.check(weight(p), p.rows, columns);
        if (bias) source_.check(p.name + ".bias", 0, p.rows);
      }
      return;
    }
    Index rows = 0, at = 0;
    for (const Part& p : parts) rows += p.rows;
    Tensor all(DType::f32, {rows, columns});
    if (bias) to.bias = Tensor(DType::f32, {rows});
    for (const Part& p : parts) {
      source_.read(weight(p), p.rows, columns, all.values<float>().data() + at * columns);
      if (bias) source_.read(p.name + ".bias", 0, p.rows, to.bias.values<float>().data() + at);
      at += p.rows;
    }
    to.matrix = pack_matrix(in_dtype(all).view(), DType::f32, ctx_);
  }

  /// The same numbers, rounded to the dtype of products. A tensor of f32 is only looked at.
  struct Rounded {
    Tensor own;
    AnyView looked;
    const AnyView& view() const { return looked; }
  };
  Rounded in_dtype(const Tensor& t) const {
    Rounded r;
    r.looked = t.view();
    if (dtype_ == DType::f32) return r;
    r.own = Tensor(dtype_, {t.view().size[0], t.view().size[1]});
    r.looked = r.own.view();
    const std::span<const float> from = t.values<const float>();
    for (std::size_t i = 0; i < from.size(); ++i)
      store_double(r.looked.data, dtype_, static_cast<Index>(i), static_cast<double>(from[i]));
    return r;
  }

  static Index bytes_of(const DecoderWeights& w) {
    const auto tensor = [](const Tensor& t) { return t.view().count() * size_of(t.dtype()); };
    const auto norms = [&](const NormWeights& n) { return tensor(n.weight) + tensor(n.bias); };
    const auto matrix = [&](const ProductWeights& p) {
      return static_cast<Index>(p.matrix.bytes()) + tensor(p.bias);
    };
    Index all = tensor(w.embed) + tensor(w.positions) + norms(w.norm) + matrix(w.head);
    for (const DecoderLayer& l : w.layers) {
      for (const NormWeights* n : {&l.norm_1, &l.norm_2, &l.behind_1, &l.behind_2}) all += norms(*n);
      for (const ProductWeights* p : {&l.qkv, &l.out, &l.gate, &l.up, &l.down}) all += matrix(*p);
      all += tensor(l.q_norm) + tensor(l.k_norm);
    }
    return all;
  }

  DecoderSource& source_;
  const DecoderConfig& c_;
  DType dtype_;
  Context& ctx_;
  bool reading_ = false;
};

}  // namespace

DecoderWeights::DecoderWeights(DecoderSource& source, DType dtype, Context& ctx) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, ErrorKind::bad_dtype, "decoder",
          "got weights of ", dtype, "; they are f32, bf16 or f16");
  Loader(source, dtype, ctx).load(*this);
}

}  // namespace headwise
