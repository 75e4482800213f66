// hw.MultiHead, hw.Block, hw.Stack, hw.suggest_heads: layers with their weights, forward and backward.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "headwise/layers/multi_head/suggest_heads.h"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"
#include "python/attention/heads.h"
#include "python/layers/layer_box.h"
#include "python/layers/ranks.h"

namespace headwise::python {
namespace {

template <class E, std::size_t N>
E read_named(ArgName at, std::string_view word, const std::string_view (&names)[N]) {
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == word) return static_cast<E>(i);
    known += text(i ? ", " : "", names[i]);
  }
  throw Error(ErrorKind::bad_argument, text(at.op, ": ", at.name, " is \"", word, "\"; give one of ", known));
}

struct MultiHeadBox : LayerBox {
  MultiHeadBox(const std::string& heads, const MultiHeadOptions& o, DType dtype, std::uint64_t init_seed)
      : LayerBox(dtype, init_seed, o.teams), layer(params, "attention", heads, o) {}
  MultiHead layer;
  MultiHead::Saved saved;
};

struct MultiHeadWords {
  nb::handle x, keys, values, mask, bias, offsets, kv_offsets, ctx;
  bool keep, weights, training;
  std::uint64_t seed, step;
};

nb::object run_multi_head(MultiHeadBox& box, const MultiHeadWords& w) {
  constexpr const char* kOp = "multi_head";
  const Turn turn(box.turn);
  box.begin();
  StepInputs& in = box.inputs;
  const DType dtype = box.params.dtype();
  in.x.read(kOp, "x", w.x, w.offsets, dtype, box.teams);
  if (!w.keys.is_none()) in.keys.read(kOp, "keys", w.keys, w.kv_offsets, dtype);
  if (!w.values.is_none()) in.values.read(kOp, "values", w.values, w.kv_offsets, dtype);
  in.mask_object = nb::borrow(w.mask), in.mask = read_mask_set(kOp, "mask", w.mask);
  in.training = w.training, in.seed = w.seed, in.step = w.step;
  MultiHeadArgs a{.x = in.x.rows,
                  .keys = in.keys.rows,
                  .values = in.values.rows,
                  .sequences = in.x.sequences,
                  .kv_sequences = in.keys.given() ? in.keys.sequences : in.x.sequences,
                  .mask = in.mask};
  if (!w.bias.is_none()) a.bias = read_array(kOp, "bias", w.bias).view;
  MadeArray out = make_rows(in.x, box.layer.options().model_dim), weights;
  if (w.weights) {
    const Teams* const teams = box.layer.options().teams;
    const Index ranks = teams ? teams->tensor_ranks() : 1;
    const Index sizes[] = {a.sequences.count(), ranks * box.layer.head().spec().q.heads,
                           a.sequences.longest(), a.kv_sequences.longest()};
    weights = make_array(in.x.kind, w.x, dtype == DType::f64 ? DType::f64 : DType::f32, sizes);
    a.weights = weights.view;
  }
  if (w.keep) box.params.make_grads();
  run_alone(context_of(kOp, w.ctx), [&](Context& c) {
    Call call = in.call(c, box.memory);
    copy_rows(box.layer.forward(a, call, w.keep ? &box.saved : nullptr), out.view);
    in.note_loss(call);
  });
  box.kept = w.keep;
  if (!w.weights) return out.object;
  return nb::make_tuple(out.object, weights.object);
}

/// The gradient of an output as rows like those of `x`.
RowsArray read_gradient(const char* op, nb::handle dy, const StepInputs& in, Index columns) {
  RowsArray d;
  d.read(op, "dy", dy, nb::none(), in.x.view.dtype);
  require(d.rows.size[0] == in.x.rows.size[0] && d.rows.size[1] == columns, ErrorKind::bad_shape, op,
          "dy is ", d.view, " but the forward gave ", in.x.rows.size[0], " rows of ", columns,
          "; give its sizes");
  return d;
}

nb::object run_multi_head_backward(MultiHeadBox& box, nb::handle dy, double loss_weight, nb::handle ctx) {
  constexpr const char* kOp = "multi_head.backward";
  const Turn turn(box.turn);
  box.check_kept(kOp);
  const StepInputs& in = box.inputs;
  const RowsArray d = read_gradient(kOp, dy, in, box.layer.options().model_dim);
  MadeArray dx = make_rows(in.x, in.x.rows.size[1]), dkeys, dvalues;
  if (in.keys.given()) dkeys = make_rows(in.keys, in.keys.rows.size[1]);
  if (in.values.given()) dvalues = make_rows(in.values, in.values.rows.size[1]);
  run_alone(context_of(kOp, ctx), [&](Context& c) {
    Call call = in.call_back(c, box.memory, loss_weight);
    const MultiHeadGrads g = box.layer.backward(d.rows, call, box.saved);
    copy_rows(g.dx, dx.view);
    if (in.keys.given()) copy_rows(g.dkeys, dkeys.view);
    if (!in.values.given()) return;
    require(g.dvalues.given(), ErrorKind::bad_argument, kOp,
            "keys and values were one array; leave values out of forward then");
    copy_rows(g.dvalues, dvalues.view);
  });
  box.kept = false;
  if (in.values.given()) return nb::make_tuple(dx.object, dkeys.object, dvalues.object);
  if (in.keys.given()) return nb::make_tuple(dx.object, dkeys.object);
  return dx.object;
}

/// Block and Stack: rows in, rows out, a source beside them.
template <class Layer>
struct RowsBox : LayerBox {
  template <class Options>
  RowsBox(const Options& o, const Teams* with, DType dtype, std::uint64_t init_seed)
      : LayerBox(dtype, init_seed, with), layer(params, Layer::kName, o) {}
  Layer layer;
  typename Layer::Saved saved;
};
struct BlockLayer : Block {
  static constexpr const char* kName = "block";
  static constexpr bool kHolds = true;  // a rank of a context team gives its own rows
  using Block::Block;
  Index width() const { return options().model_dim; }
};
struct StackLayer : Stack {
  static constexpr const char* kName = "stack";
  static constexpr bool kHolds = false;
  using Stack::Stack;
  Index width() const { return options().block.model_dim; }
};

struct RowsWords {
  nb::handle x, source, mask, source_mask, offsets, source_offsets, ctx;
  bool keep, training;
  std::uint64_t seed, step;
};

template <class Layer>
nb::object run_rows(RowsBox<Layer>& box, const RowsWords& w) {
  const char* op = Layer::kName;
  const Turn turn(box.turn);
  box.begin();
  StepInputs& in = box.inputs;
  in.x.read(op, "x", w.x, w.offsets, box.params.dtype(), Layer::kHolds ? box.teams : nullptr);
  if (!w.source.is_none()) in.keys.read(op, "source", w.source, w.source_offsets, box.params.dtype());
  in.mask_object = nb::borrow(w.mask), in.mask = read_mask_set(op, "mask", w.mask);
  in.source_mask_object = nb::borrow(w.source_mask);
  in.source_mask = read_mask_set(op, "source_mask", w.source_mask);
  in.training = w.training, in.seed = w.seed, in.step = w.step;
  MadeArray out = make_rows(in.x, box.layer.width());
  if (w.keep) box.params.make_grads();
  run_alone(context_of(op, w.ctx), [&](Context& c) {
    Call call = in.call(c, box.memory);
    copy_rows(box.layer.forward(in.x.rows, call, w.keep ? &box.saved : nullptr), out.view);
    in.note_loss(call);
  });
  box.kept = w.keep;
  return out.object;
}

template <class Layer>
nb::object run_rows_backward(RowsBox<Layer>& box, nb::handle dy, double loss_weight, nb::handle ctx) {
  const char* op = Layer::kName;
  const Turn turn(box.turn);
  box.check_kept(op);
  const StepInputs& in = box.inputs;
  const RowsArray d = read_gradient(op, dy, in, box.layer.width());
  MadeArray dx = make_rows(in.x, in.x.rows.size[1]), dsource;
  if (in.keys.given()) dsource = make_rows(in.keys, in.keys.rows.size[1]);
  run_alone(context_of(op, ctx), [&](Context& c) {
    Call call = in.call_back(c, box.memory, loss_weight);
    if (in.keys.given()) {
      call.dsource = as_rows(dsource.view, in.keys.rows.size[1]);
      fill_zeros(call.dsource);
    }
    copy_rows(box.layer.backward(d.rows, call, box.saved), dx.view);
  });
  box.kept = false;
  if (in.keys.given()) return nb::make_tuple(dx.object, dsource.object);
  return dx.object;
}

template <class Layer, class Class>
void def_rows(Class& c) {
  const auto run = [](bool keep) {
    return [keep](RowsBox<Layer>& box, nb::handle x, nb::handle source, nb::handle mask,
                  nb::handle source_mask, nb::handle offsets, nb::handle source_offsets, bool training,
                  std::uint64_t seed, std::uint64_t step, nb::handle ctx) {
      return run_rows(
          box, {x, source, mask, source_mask, offsets, source_offsets, ctx, keep, training, seed, step});
    };
  };
  const auto def = [&](const char* name, bool keep, const char* signature, const char* doc) {
    c.def(name, run(keep), nb::arg("x"), nb::arg("source") = nb::none(), nb::arg("mask") = nb::none(),
          nb::arg("source_mask") = nb::none(), nb::kw_only(), nb::arg("offsets") = nb::none(),
          nb::arg("source_offsets") = nb::none(), nb::arg("training") = false, nb::arg("seed") = 0,
          nb::arg("step") = 0, nb::arg("ctx") = nb::none(), nb::sig(signature), doc);
  };
  def("__call__", false,
      "def __call__(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: "
      "Mask | "
      "None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, "
      "training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT",
      "x [batch tokens model_dim], or [tokens model_dim] with offsets; nothing is kept for a backward.");
  def("forward", true,
      "def forward(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: "
      "Mask | "
      "None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, "
      "training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT",
      "The same, and backward may follow. training turns dropout on, drawn from seed and step.");
  c.def(
      "backward",
      [](RowsBox<Layer>& box, nb::handle dy, double loss_weight, nb::handle ctx) {
        return run_rows_backward(box, dy, loss_weight, ctx);
      },
      nb::arg("dy"), nb::kw_only(), nb::arg("loss_weight") = 1.0, nb::arg("ctx") = nb::none(),
      nb::sig("def backward(self, dy: ArrayT, *, loss_weight: float = 1.0, ctx: Context | None = None) -> "
              "ArrayT | tuple[ArrayT, ArrayT]"),
      "The gradient of x, with a source (dx, dsource); gradients of parameters are added to gradients(). "
      "loss_weight: that of `loss` in the total loss.");
}

/// What Block and Stack take alike.
struct BlockWords {
  nb::handle heads;
  Index model_dim, feed_dim;
  const std::string &cross, &feed, &norm;
  bool norm_first, bias;
  double dropout, attention_dropout, eps;
  const std::string& positions;
  const Teams* teams;
};
BlockOptions read_block(const char* op, const BlockWords& w) {
  constexpr std::string_view kCross[] = {"none", "attention", "merged"};
  constexpr std::string_view kNorm[] = {"layer", "rms"};
  return {.heads = settings_of(op, w.heads),
          .cross = read_named<Cross>({op, "cross"}, w.cross, kCross),
          .model_dim = w.model_dim,
          .feed_dim = w.feed_dim,
          .feed = read_named<FeedKind>({op, "feed"}, w.feed, kFeedNames),
          .norm = {.kind = read_named<NormKind>({op, "norm"}, w.norm, kNorm), .eps = w.eps, .bias = w.bias},
          .norm_first = w.norm_first,
          .bias = w.bias,
          .dropout = w.dropout,
          .attention_dropout = w.attention_dropout,
          .positions = read_named<Positions>({op, "positions"}, w.positions, kPositionNames),
          .teams = w.teams};
}

void bind_multi_head(nb::module_& m) {
  nb::class_<MultiHeadBox, LayerBox> multi(
      m, "MultiHead", "Projections to queries, keys and values, any head's attention between them, and W_O.");
  multi.def(
      "__init__",
      [](MultiHeadBox* self, nb::handle heads, Index model_dim, Index key_model_dim, Index value_model_dim,
         bool bias, double dropout, bool rope, bool alibi, nb::handle dtype, std::uint64_t seed,
         nb::handle teams) {
        MultiHeadOptions o{.model_dim = model_dim,
                           .key_model_dim = key_model_dim,
                           .value_model_dim = value_model_dim,
                           .bias = bias,
                           .out_bias = bias,
                           .dropout = dropout,
                           .alibi = alibi,
                           .teams = read_teams("multi_head", teams)};
        if (rope) o.rope = RopeOptions{};
        new (self)
            MultiHeadBox(settings_of("multi_head", heads), o, read_layer_dtype("multi_head", dtype), seed);
        self->teams_object = nb::borrow(teams);
      },
      nb::arg("heads"), nb::arg("model_dim"), nb::kw_only(), nb::arg("key_model_dim") = 0,
      nb::arg("value_model_dim") = 0, nb::arg("bias") = true, nb::arg("dropout") = 0.0,
      nb::arg("rope") = false, nb::arg("alibi") = false, nb::arg("dtype") = "f32", nb::arg("seed") = 0,
      nb::arg("teams") = nb::none(),
      nb::sig(
          "def __init__(self, heads: Head | str, model_dim: int, *, key_model_dim: int = 0, value_model_dim: "
          "int = "
          "0, bias: bool = True, dropout: float = 0.0, rope: bool = False, alibi: bool = False, dtype: str = "
          "\"f32\", seed: int = 0, teams: Teams | None = None) -> None"),
      "heads: \"gqa:heads=8,kv_heads=2,dim=64\", or headwise.Gqa(heads=8, kv_heads=2, dim=64).");
  const auto run = [](bool keep) {
    return [keep](MultiHeadBox& box, nb::handle x, nb::handle keys, nb::handle values, nb::handle mask,
                  nb::handle bias, bool weights, nb::handle offsets, nb::handle kv_offsets, bool training,
                  std::uint64_t seed, std::uint64_t step, nb::handle ctx) {
      return run_multi_head(
          box, {x, keys, values, mask, bias, offsets, kv_offsets, ctx, keep, weights, training, seed, step});
    };
  };
  const auto def = [&](const char* name, bool keep, const char* signature, const char* doc) {
    multi.def(name, run(keep), nb::arg("x"), nb::arg("keys") = nb::none(), nb::arg("values") = nb::none(),
              nb::arg("mask") = nb::none(), nb::kw_only(), nb::arg("bias") = nb::none(),
              nb::arg("weights") = false, nb::arg("offsets") = nb::none(), nb::arg("kv_offsets") = nb::none(),
              nb::arg("training") = false, nb::arg("seed") = 0, nb::arg("step") = 0,
              nb::arg("ctx") = nb::none(), nb::sig(signature), doc);
  };
  def("__call__", false,
      "def __call__(self, x: ArrayT, keys: ArrayT | None = None, values: ArrayT | None = None, mask: Mask | "
      "None "
      "= None, *, bias: Array | None = None, weights: bool = False, offsets: Sequence[int] | None = None, "
      "kv_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: "
      "Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]",
      "x [batch tokens model_dim], or [tokens model_dim] with offsets; keys and values default to x. "
      "weights: "
      "also returns them, [batch heads q kv].");
  def("forward", true,
      "def forward(self, x: ArrayT, keys: ArrayT | None = None, values: ArrayT | None = None, mask: Mask | "
      "None "
      "= None, *, bias: Array | None = None, weights: bool = False, offsets: Sequence[int] | None = None, "
      "kv_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: "
      "Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]",
      "The same, and backward may follow.");
  multi.def(
      "backward", &run_multi_head_backward, nb::arg("dy"), nb::kw_only(), nb::arg("loss_weight") = 1.0,
      nb::arg("ctx") = nb::none(),
      nb::sig("def backward(self, dy: ArrayT, *, loss_weight: float = 1.0, ctx: Context | None = None) -> "
              "ArrayT | tuple[ArrayT, ...]"),
      "The gradient of x, or (dx, dkeys), or (dx, dkeys, dvalues), as forward was given them. loss_weight: "
      "that of `loss` in the total loss.");
}

void bind_block(nb::module_& m) {
  nb::class_<RowsBox<BlockLayer>, LayerBox> block(
      m, "Block", "One layer of an encoder or decoder: attention, cross-attention, feed-forward.");
  block.def(
      "__init__",
      [](RowsBox<BlockLayer>* self, nb::handle heads, Index model_dim, Index feed_dim,
         const std::string& cross, const std::string& feed, const std::string& norm, bool norm_first,
         bool bias, double dropout, double attention_dropout, double eps, const std::string& positions,
         nb::handle dtype, std::uint64_t seed, nb::handle teams) {
        const Teams* with = read_teams("block", teams);
        new (self) RowsBox<BlockLayer>(
            read_block("block", {heads, model_dim, feed_dim, cross, feed, norm, norm_first, bias, dropout,
                                 attention_dropout, eps, positions, with}),
            with, read_layer_dtype("block", dtype), seed);
        self->teams_object = nb::borrow(teams);
      },
      nb::arg("heads"), nb::arg("model_dim"), nb::arg("feed_dim"), nb::kw_only(), nb::arg("cross") = "none",
      nb::arg("feed") = "relu", nb::arg("norm") = "layer", nb::arg("norm_first") = true,
      nb::arg("bias") = true, nb::arg("dropout") = 0.0, nb::arg("attention_dropout") = 0.0,
      nb::arg("eps") = 1e-5, nb::arg("positions") = "none", nb::arg("dtype") = "f32", nb::arg("seed") = 0,
      nb::arg("teams") = nb::none(),
      nb::sig("def __init__(self, heads: Head | str, model_dim: int, feed_dim: int, *, cross: str = "
              "\"none\", feed: "
              "str = "
              "\"relu\", norm: str = \"layer\", norm_first: bool = True, bias: bool = True, dropout: float = "
              "0.0, "
              "attention_dropout: float = 0.0, eps: float = 1e-5, positions: str = \"none\", dtype: str = "
              "\"f32\", seed: int = 0, teams: Teams | None = None) -> None"),
      "cross: none, attention or merged. feed: relu, gelu, gelu_tanh or swiglu. norm: layer or rms. "
      "positions: "
      "none, rope or alibi.");
  def_rows<BlockLayer>(block);
}

void bind_stack(nb::module_& m) {
  nb::class_<RowsBox<StackLayer>, LayerBox> stack(m, "Stack",
                                                  "Blocks after each other, and a norm at the end.");
  stack.def(
      "__init__",
      [](RowsBox<StackLayer>* self, nb::handle heads, Index model_dim, Index feed_dim, Index depth,
         Index share_layers, bool final_norm, double ds_init, const std::string& cross,
         const std::string& feed, const std::string& norm, bool norm_first, bool bias, double dropout,
         double attention_dropout, double eps, const std::string& positions, nb::handle dtype,
         std::uint64_t seed, nb::handle teams) {
        const Teams* with = read_teams("stack", teams);
        StackOptions o{
            .depth = depth, .share_layers = share_layers, .final_norm = final_norm, .ds_init = ds_init};
        o.block = read_block("stack", {heads, model_dim, feed_dim, cross, feed, norm, norm_first, bias,
                                       dropout, attention_dropout, eps, positions, with});
        new (self) RowsBox<StackLayer>(o, with, read_layer_dtype("stack", dtype), seed);
        self->teams_object = nb::borrow(teams);
      },
      nb::arg("heads"), nb::arg("model_dim"), nb::arg("feed_dim"), nb::arg("depth"), nb::kw_only(),
      nb::arg("share_layers") = 1, nb::arg("final_norm") = true, nb::arg("ds_init") = 0.0,
      nb::arg("cross") = "none", nb::arg("feed") = "relu", nb::arg("norm") = "layer",
      nb::arg("norm_first") = true, nb::arg("bias") = true, nb::arg("dropout") = 0.0,
      nb::arg("attention_dropout") = 0.0, nb::arg("eps") = 1e-5, nb::arg("positions") = "none",
      nb::arg("dtype") = "f32", nb::arg("seed") = 0, nb::arg("teams") = nb::none(),
      nb::sig(
          "def __init__(self, heads: Head | str, model_dim: int, feed_dim: int, depth: int, *, share_layers: "
          "int = "
          "1, "
          "final_norm: bool = True, ds_init: float = 0.0, cross: str = \"none\", feed: str = \"relu\", norm: "
          "str = \"layer\", norm_first: bool = True, bias: bool = True, dropout: float = 0.0, "
          "attention_dropout: float = 0.0, eps: float = 1e-5, positions: str = \"none\", dtype: str = "
          "\"f32\", seed: int = 0, teams: Teams | None = None) -> None"),
      "depth blocks; share_layers consecutive ones use one set of weights.");
  def_rows<StackLayer>(stack);
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_layer_box(m);
  bind_multi_head(m);
  bind_block(m);
  bind_stack(m);
  m.def(
      "suggest_heads",
      [](Index model_dim) {
        const HeadsAdvice a = suggest_heads(model_dim);
        return nb::make_tuple(a.heads, a.head_dim, a.kv_heads, a.sentence);
      },
      nb::arg("model_dim"), nb::sig("def suggest_heads(model_dim: int) -> tuple[int, int, int, str]"),
      "heads, head_dim, kv_heads, and why, for a model of this width.");
}

}  // namespace headwise::python
