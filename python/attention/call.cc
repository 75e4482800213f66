#include "python/attention/call.h"

#include <algorithm>

#include <nanobind/stl/vector.h>

#include <cstring>
#include <ctime>

#include "headwise/base/context.h"
#include "headwise/layers/basic/embed.h"
#include "headwise/ops/attention/run_facts.h"
#include "python/arrays/long_flight.h"
#include "python/arrays/values.h"
#include "python/attention/arguments.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "attention";

bool given(nb::handle h) { return h.ptr() != Py_None; }

struct LayoutName {
  const char* name;
  AxisOrder order;
};
constexpr AxisOrder kBshd{0, 1, 2, 0, 1, "[batch tokens heads dim]", "[tokens heads dim]"};
constexpr AxisOrder kBhsd{0, 2, 1, 1, 0, "[batch heads tokens dim]", "[heads tokens dim]"};
constexpr AxisOrder kSbhd{1, 0, 2, 0, 1, "[tokens batch heads dim]", "[tokens heads dim]"};
constexpr LayoutName kLayouts[] = {{"bshd", kBshd}, {"bhsd", kBhsd}, {"sbhd", kSbhd}, {"btnh", kBshd},
                                   {"bsnh", kBshd}, {"bmhk", kBshd}, {"bnsh", kBhsd}, {"thd", kBshd},
                                   {"nhd", kBshd},  {"htd", kBhsd},  {"hnd", kBhsd}};

}  // namespace

const AxisOrder& layout_named(const char* op, nb::handle h) {
  const std::string_view word = read_word({op, "layout"}, h);
  for (const LayoutName& l : kLayouts)
    if (word == l.name) return l.order;
  throw Error(ErrorKind::bad_argument,
              text(op, ": layout is \"", word,
                   "\"; give \"bshd\", \"bhsd\" or \"sbhd\" (docs/python.md lists the aliases)"));
}

AnyView as_bshd(const char* op, const char* name, const AnyView& v, const AxisOrder& order, bool ragged,
                bool scales) {
  const int rank = (ragged ? 3 : 4) - (scales ? 1 : 0);
  const bool takes_offsets = std::string_view(op) == kOp;
  require(v.rank == rank, ErrorKind::bad_shape, op, name, " is ", v, " but ", rank, " axes are needed, ",
          ragged ? order.ragged_axes : order.axes, scales ? " without dim" : "",
          ragged || scales || !takes_offsets
              ? ""
              : "; ragged batches of 3 axes come with q_offsets and kv_offsets");
  AnyView r;
  r.data = v.data;
  r.dtype = v.dtype;
  r.device = v.device;
  r.rank = scales ? 3 : 4;
  const auto take = [&](int axis, int from) { r.size[axis] = v.size[from], r.step[axis] = v.step[from]; };
  if (ragged) {
    r.size[0] = 1;
    take(1, order.ragged_tokens), take(2, order.ragged_heads);
  } else {
    take(0, order.batch), take(1, order.tokens), take(2, order.heads);
  }
  if (!scales) take(3, rank - 1);
  return r;
}

void AttentionCall::read_keys_and_values(const AttentionWords& words) {
  // Pages have four axes, whatever q has.
  const bool ragged = ragged_ && !(words.pages.is_valid() && given(words.pages));
  const auto read = [&](const char* name, nb::handle h) {
    const Array a = read_anywhere(kOp, name, h);
    if (h.ptr() == words.q.ptr()) kind_ = a.kind;
    if (!(a.kind == kind_)) refuse_kinds(kOp, {"q", words.q}, {name, h});
    return a.view;
  };
  args_.q = as_bshd("q", read("q", words.q));
  heads_ = args_.q.size[2];
  if (nb::isinstance<PackedCache>(words.k)) {
    const auto& packed = nb::cast<const PackedCache&>(words.k);
    if (!(packed.kind == kind_)) refuse_kinds(kOp, {"q", words.q}, {"k", packed.buffer});
    args_.k = packed.view;
    args_.packed = packed.about;
  } else {
    args_.k = python::as_bshd(kOp, "k", read("k", words.k), *order_, ragged);
  }
  args_.v = python::as_bshd(kOp, "v", read("v", words.v), *order_, ragged);
  const auto scales = [&](const char* name, nb::handle h) {
    return given(h) ? python::as_bshd(kOp, name, read(name, h), *order_, ragged, true) : AnyView();
  };
  args_.k_scale = scales("k_scale", words.k_scale);
  args_.v_scale = scales("v_scale", words.v_scale);
}

AnyView AttentionCall::read_term(const char* name, nb::handle h) const {
  const Array a = read_anywhere(kOp, name, h);
  if (!(a.kind.device == kind_.device)) refuse_kinds(kOp, {"q", like_}, {name, h});
  return a.view;
}

AttentionCall::AttentionCall(const AttentionWords& words)
    : order_(&layout_named(kOp, words.layout)),
      like_(words.q),
      given_out_(words.out),
      probe_words_(words.probe) {
  ragged_ = given(words.q_offsets) || given(words.kv_offsets);
  read_keys_and_values(words);
  want_lse_ = read_bool({kOp, "return_lse"}, words.return_lse);
  read_places(words);
  if (words.pages.is_valid() && given(words.pages)) read_pages(words.pages);
  if (given(words.mask)) read_mask(words.mask);
  read_head(words);
  read_scores(words);
  complete_head();
  context_ = &context_of(kOp, words.ctx);
  if (const std::optional<Device>& device = context_->options().device; device && !(*device == kind_.device))
    throw Error(ErrorKind::bad_argument, text(kOp, ": q lies on ", kind_.device, " but the context is for ",
                                              *device, "; bring them together"));
  own_kernels_ = given(words.kernels);
  if (own_kernels_) kernels_ = read_kernels({kOp, "kernels"}, words.kernels);

  if (given(words.probe)) {
    ProbeRequest request = read_probe(words.probe);
    probe_ = request.spec, probe_rows_ = request.rows;
    picks_ = std::move(request.picks);
    class_of_ = std::move(request.class_of);
    if (probe_.picked > 0) args_.probe.picks = AnyView::packed(picks_.data(), DType::i64, {probe_.picked, 3});
    if (probe_.classes > 0) {
      const bool paged = !page_lengths_.empty();
      const Index batch = paged ? args_.q.size[0] : args_.k.size[0],
                  tokens = paged ? *std::max_element(page_lengths_.begin(), page_lengths_.end())
                           : args_.packed.given() ? args_.packed.tokens
                                                  : args_.k.size[1];
      require(request.class_columns == tokens && (request.class_rows == batch || request.class_rows == 1),
              ErrorKind::bad_shape, kOp, "probe classes are [", request.class_rows, " ",
              request.class_columns, "] but [", batch, " ", tokens,
              "] is needed, [batch kv_tokens]; one row repeats");
      args_.probe.class_of = AnyView::packed(class_of_.data(), DType::i32, {batch, tokens});
      if (request.class_rows == 1) args_.probe.class_of.step[0] = 0;
    }
  }
  problem_ = problem_of(args_, probe_, spec_);
  problem_.lse = want_lse_;
}

void AttentionCall::read_places(const AttentionWords& words) {
  const bool paged = words.pages.is_valid() && given(words.pages);
  if (ragged_) {
    require(
        given(words.q_offsets) && (paged || given(words.kv_offsets)), ErrorKind::bad_argument, kOp,
        given(words.q_offsets) ? "q_offsets came without kv_offsets" : "kv_offsets came without q_offsets",
        "; ragged batches need both (the same array for self-attention)");
    q_offsets_ = read_indices({kOp, "q_offsets"}, words.q_offsets);
    args_.q_offsets = AnyView::packed(q_offsets_.data(), DType::i64, {static_cast<Index>(q_offsets_.size())});
    if (given(words.kv_offsets)) {
      kv_offsets_ = read_indices({kOp, "kv_offsets"}, words.kv_offsets);
      args_.kv_offsets =
          AnyView::packed(kv_offsets_.data(), DType::i64, {static_cast<Index>(kv_offsets_.size())});
    }
  }
  if (PyLong_CheckExact(words.q_start.ptr())) {
    const Index start = read_index({kOp, "q_start"}, words.q_start);
    if (start == 0) return;
    q_start_ = {start};
  } else {
    q_start_ = PyIndex_Check(words.q_start.ptr()) && !is_array(words.q_start)
                   ? std::vector<Index>{read_index({kOp, "q_start"}, words.q_start)}
                   : read_indices({kOp, "q_start"}, words.q_start);
  }
  args_.q_start = AnyView::packed(q_start_.data(), DType::i64, {static_cast<Index>(q_start_.size())});
}

void AttentionCall::read_pages(nb::handle pages) {
  require(!args_.packed.given(), ErrorKind::bad_argument, kOp,
          "k is packed and pages are given; give k as [pages page_size kv_heads dim]");
  const auto part = [&](const char* name) {
    require(nb::hasattr(pages, name), ErrorKind::bad_argument, kOp, "pages is no hw.Pages(table, lengths)");
    return nb::object(pages.attr(name));
  };
  const nb::object table = part("table"), lengths = part("lengths");
  page_lengths_ = read_indices({kOp, "pages.lengths"}, lengths);
  args_.page_table.lengths =
      AnyView::packed(page_lengths_.data(), DType::i64, {static_cast<Index>(page_lengths_.size())});
  const Array a = read_anywhere(kOp, "pages.table", table);
  if (!(a.kind.device == kind_.device)) refuse_kinds(kOp, {"q", like_}, {"pages.table", table});
  args_.page_table.table = a.view;
}

void AttentionCall::read_mask(nb::handle mask) {
  if (nb::isinstance<Mask>(mask)) {
    args_.mask = nb::cast<const Mask&>(mask).set();  // the caller's reference keeps it
  } else {
    const bool list = PyList_Check(mask.ptr()) || PyTuple_Check(mask.ptr());
    std::vector<Mask> each;
    if (list)
      for (const nb::handle item : nb::borrow<nb::sequence>(mask)) {
        if (!nb::isinstance<Mask>(item))
          refuse_type({kOp, "an entry of mask"}, item, "a headwise.Mask per head");
        each.push_back(nb::cast<const Mask&>(item));
      }
    if (!list)
      refuse_type({kOp, "mask"}, mask,
                  "Mask.dense(x) where true means may attend, Mask.from_blocked(x) where true means may not, "
                  "or a list of one "
                  "Mask per head");
    heads_mask_ = Mask::per_head(each);
    args_.mask = heads_mask_.set();
  }
}

AnyView AttentionCall::spread_bias(const AnyView& bias) const {
  const Index batch = ragged_ ? static_cast<Index>(q_offsets_.size()) - 1 : args_.q.size[0];
  AnyView r;
  r.data = bias.data;
  r.dtype = bias.dtype;
  r.device = bias.device;
  r.rank = 4;
  for (int axis = 0; axis < 4; ++axis) r.size[axis] = 1;
  for (int axis = 0; axis < bias.rank; ++axis) {
    const int to = axis + 4 - bias.rank;
    r.size[to] = bias.size[axis];
    r.step[to] = bias.step[axis];
  }
  const bool merged =
      bias.rank == 3 && batch != 1 && bias.size[0] == batch * heads_ && bias.size[0] != heads_;
  if (merged) {
    r.size[0] = batch;
    r.size[1] = heads_;
    r.step[0] = heads_ * bias.step[0];
  }
  return r;
}

AnyView AttentionCall::with_batch(const AnyView& v, int rank) const {
  if (!ragged_ || v.rank != rank - 1) return v;
  AnyView r = v;
  r.rank = rank;
  r.size[0] = 1, r.step[0] = 0;
  for (int axis = 0; axis + 1 < rank; ++axis)
    r.size[axis + 1] = v.size[axis], r.step[axis + 1] = v.step[axis];
  return r;
}
AnyView AttentionCall::as_gate(const AnyView& gate) const { return with_batch(gate, 3); }

AnyView AttentionCall::as_rows(const char* name, const AnyView& v, const HeadLayout& layout) const {
  if (layout.row == 0) return v;
  // The step of an axis of size 1 says nothing.
  const bool one_head = v.size[2] == 1, one_column = v.size[3] == 1;
  require(
      v.size[2] * v.size[3] == layout.row && (one_head || one_column || v.step[2] == v.size[3] * v.step[3]),
      ErrorKind::bad_shape, kOp, name, " is ", v, " but this head reads ", layout.row,
      " columns of a token that lie side by side; give [batch tokens heads dim] in that order");
  AnyView r = v;
  r.rank = 3;
  r.size[2] = layout.row, r.step[2] = one_column ? v.step[2] : v.step[3];
  return r;
}

/// What a head computes from a layer's input comes ready, as coefficients.
void AttentionCall::read_head(const AttentionWords& words) {
  const bool named = words.head.is_valid() && given(words.head);
  if (named) {
    require(!args_.packed.given(), ErrorKind::unsupported, kOp,
            "k is packed and a head is named; give plain keys");
    const NamedHead& head = head_named(kOp, words.head, args_.q.size[2] * args_.q.size[3]);
    spec_ = head.spec;
    args_.q = as_rows("q", args_.q, spec_.q);
    args_.k = as_rows("k", args_.k, spec_.k);
    args_.v = as_rows("v", args_.v, spec_.v);
    head_ = &head;
    heads_ = spec_.normal_heads();
  }
  if (words.coefficients.is_valid() && given(words.coefficients)) read_coefficients(words.coefficients);
  if (!named && args_.inputs.mix_before.rank == 2) heads_ = args_.inputs.mix_before.size[1];
}

/// What the head brings itself, and what only its layer could have computed.
void AttentionCall::complete_head() {
  if (head_ == nullptr) return;
  if (head_->scale != 0 && !args_.inputs.scale.given()) {
    scale_ = head_->scale;
    args_.inputs.scale = AnyView::packed(&scale_, DType::f64, {1});
  }
  if (head_->alpha != 0 && !args_.inputs.alpha.given()) read_alpha();
  require(
      spec_.mix_stages() == 0 || args_.inputs.mix_q.given() || args_.inputs.mix_k.given(),
      ErrorKind::bad_argument, kOp,
      "this head computes mix_q and mix_k from its layer's input; give one or both ready in coefficients");
  const char* fills = spec_.terms.gate && !args_.inputs.gate.given()   ? "gate"
                      : spec_.terms.bias && !args_.inputs.bias.given() ? "bias"
                                                                       : nullptr;
  require(fills == nullptr, ErrorKind::bad_argument, kOp, "this head computes ", fills ? fills : "",
          " from its layer's input; give it ready as ", fills ? fills : "");
}

/// alpha as the head was made with it: one number for all heads.
void AttentionCall::read_alpha() {
  require(!head_->learns_alpha, ErrorKind::bad_argument, kOp,
          "this head learns an alpha for each head; give them ready as coefficients={\"alpha\": [heads]}");
  alpha_ = head_->alpha;
  AnyView& to = args_.inputs.alpha;
  to = AnyView::packed(&alpha_, DType::f64, {heads_});
  to.step[0] = 0;
  if (!on_cuda()) return;
  alpha_there_ = like_.attr("new_full")(nb::make_tuple(heads_), alpha_,
                                        nb::arg("dtype") = nb::module_::import_("torch").attr("float32"));
  to = read_anywhere(kOp, "alpha", alpha_there_).view;
}

void AttentionCall::read_coefficients(nb::handle coefficients) {
  if (!PyDict_Check(coefficients.ptr()))
    refuse_type({kOp, "coefficients"}, coefficients, "a dict of arrays by name");
  for (const auto& [key, item] : nb::borrow<nb::dict>(coefficients)) {
    const std::string_view name = read_word({kOp, "a key of coefficients"}, key);
    if (name == "rows") {
      require(
          PySequence_Check(item.ptr()) && nb::len(item) == 2, ErrorKind::bad_argument, kOp,
          "rows of coefficients is not a pair; give (offsets, index): the query rows of each sequence and "
          "head, one list after the other");
      if (const nb::object offsets(item[0]);
          on_cuda() && is_array(offsets) &&
          read_anywhere(kOp, "offsets of rows", offsets).kind.device == kind_.device) {
        args_.inputs.rows = {read_term("offsets of rows", offsets),
                             read_term("index of rows", nb::object(item[1]))};
        continue;
      }
      row_offsets_ = read_indices({kOp, "offsets of rows"}, nb::object(item[0]));
      row_index_ = read_indices({kOp, "index of rows"}, nb::object(item[1]));
      const auto view = [](std::vector<Index>& v) {
        return AnyView::packed(v.data(), DType::i64, {static_cast<Index>(v.size())});
      };
      row_index_.reserve(1);  // an empty list has an address too
      args_.inputs.rows = {view(row_offsets_), view(row_index_)};
      continue;
    }
    const ScoreTerm* found = nullptr;
    std::string names;
    for (const ScoreTerm& c : kScoreTerms) {
      if (!c.of_head) continue;
      names += text(c.word, ", ");
      if (name == c.word) found = &c;
    }
    require(found != nullptr, ErrorKind::bad_argument, kOp, "coefficients holds \"", name, "\"; it may hold ",
            names, "rows");
    const AnyView v = read_term(found->word, item);
    args_.inputs.*found->input = found->of_tokens ? with_batch(v, 4) : v;
  }
}

void AttentionCall::read_scores(const AttentionWords& words) {
  HeadInputs& in = args_.inputs;
  if (given(words.scale)) {
    if (is_array(words.scale) && read_array(kOp, "scale", words.scale).view.rank > 0) {
      in.scale = read_array(kOp, "scale", words.scale).view;
    } else {
      scale_ = read_number({kOp, "scale"}, words.scale);
      in.scale = AnyView::packed(&scale_, DType::f64, {1});
    }
  }
  if (given(words.softcap)) in.softcap = read_number({kOp, "softcap"}, words.softcap);
  if (given(words.bias)) in.bias = spread_bias(read_term("bias", words.bias));
  if (given(words.alibi) && words.alibi.ptr() != Py_False) {
    if (words.alibi.ptr() == Py_True) {
      const DType wide = args_.q.dtype == DType::f64 ? DType::f64 : DType::f32;
      slopes_ = alibi_slopes_of(max_of(heads_, 1), wide);
      in.slopes = AnyView::packed(slopes_.view().data, wide, {heads_});
      if (on_cuda()) {
        std::vector<double> each;
        for (Index h = 0; h < heads_; ++h) each.push_back(load_double(in.slopes.data, wide, h));
        slopes_there_ =
            words.q.attr("new_tensor")(nb::cast(each), nb::arg("dtype") = nb::module_::import_("torch").attr(
                                                           wide == DType::f64 ? "float64" : "float32"));
        in.slopes = read_anywhere(kOp, "alibi", slopes_there_).view;
      }
    } else {
      in.slopes = read_term("alibi", words.alibi);
    }
  }
  if (given(words.relative)) {
    if (!nb::hasattr(words.relative, "table"))
      refuse_type({kOp, "relative"}, words.relative, "headwise.T5(table, bidirectional, max_distance)");
    const nb::object table = words.relative.attr("table");
    in.relative = read_term("relative table", table);
    in.buckets = {in.relative.size[0], read_index({kOp, "max_distance"}, words.relative.attr("max_distance")),
                  read_bool({kOp, "bidirectional"}, words.relative.attr("bidirectional"))};
  }
  for (const ScoreTerm& t : kScoreTerms)  // numbers of the heads that need nothing but to be read
    if (t.shape[0] == TermAxis::heads && t.call == nullptr && given(words.*word_of(t)))
      in.*t.input = read_term(t.word, words.*word_of(t));
  if (given(words.gate)) in.gate = as_gate(read_term("gate", words.gate));
  in.dropout = read_number({kOp, "dropout"}, words.dropout);
  in.seed = read_seed({kOp, "seed"}, words.seed);
}

const std::string& AttentionCall::kernels() {
  return own_kernels_ ? kernels_ : context_->engine().context.kernels();
}

const AttentionPlan& AttentionCall::plan() {
  CallContext::Engine& e = context_->engine();
  return e.plans.get(problem_, e.context.threads(), kernels());
}

void AttentionCall::put_tokens_first() { out_order_ = &kBshd; }

void AttentionCall::make_outputs() {
  const AttentionProblem& p = problem_;
  const Index rows = args_.q.size[1], heads = p.heads.v.heads, dim = p.heads.v.dim;
  if (given(given_out_)) {
    const Array out = read_anywhere(kOp, "out", given_out_);
    if (!(out.kind == kind_)) refuse_kinds(kOp, {"q", like_}, {"out", given_out_});
    require(out.writable, ErrorKind::bad_argument, kOp, "out is read-only; give a writable array");
    args_.out = as_bshd("out", out.view);
    out_ = nb::borrow(given_out_);
  } else {
    Index sizes[4];
    int axes = 0;
    if (ragged_) {
      sizes[order_->ragged_tokens] = rows, sizes[order_->ragged_heads] = heads, sizes[2] = dim, axes = 3;
    } else {
      sizes[out_order_->batch] = p.batch, sizes[out_order_->tokens] = rows, sizes[out_order_->heads] = heads,
      sizes[3] = dim, axes = 4;
    }
    MadeArray made = make_array(kind_, like_, p.dtype, {sizes, static_cast<std::size_t>(axes)});
    args_.out = python::as_bshd(kOp, "out", made.view, *out_order_, ragged_);
    out_ = std::move(made.object);
  }
  const DType wide = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (want_lse_) {
    const Index sizes[] = {p.batch, p.heads.normal_heads(), rows};
    MadeArray made = make_array(kind_, like_, wide, ragged_ ? std::span(sizes).subspan(1) : std::span(sizes));
    args_.lse =
        AnyView::packed(made.view.data, wide, {ragged_ ? 1 : p.batch, sizes[1], rows}).on(kind_.device);
    lse_ = std::move(made.object);
  }
  if (given(probe_words_)) probe_result_ = make_probe_result(p, probe_rows_, kind_, like_, args_.probe);
}

const AttentionPlan& AttentionCall::plan_with_outputs() {
  if (on_cuda()) {  // its kernels choose by where out lies, too
    make_outputs();
    problem_.run = run_facts(problem_, args_);
    return plan();
  }
  const AttentionPlan& chosen = plan();
  make_outputs();
  return chosen;
}

void AttentionCall::compute() {
  CallContext::Engine& engine = context_->engine();
  const Turn turn(engine.turn);
  const AttentionPlan& chosen = plan_with_outputs();
  if (on_cuda()) engine.context.set_stream(current_stream(kind_));
  LongFlight without_gil;
  chosen.run(args_, engine.context);
  without_gil.end();
}

double AttentionCall::seconds(int count) {
  compute();
  CallContext::Engine& engine = context_->engine();
  const Turn turn(engine.turn);
  const AttentionPlan& chosen = plan();
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  for (int i = 0; i < count; ++i) chosen.run(args_, engine.context);
  return (now() - start) / count;
}

nb::object AttentionCall::run() {
  compute();
  if (!want_lse_ && !given(probe_words_)) return std::move(out_);
  static const nb::handle result =
      nb::object(nb::module_::import_("headwise._types").attr("AttentionResult")).release();
  return result(out_, want_lse_ ? lse_ : nb::none(), given(probe_words_) ? probe_result_ : nb::none());
}

}  // namespace headwise::python
