// hw.Transformer, hw.cross_entropy, hw.binary_cross_entropy: whole models and what they are trained by.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "headwise/ops/row/cross_entropy.h"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"
#include "python/attention/heads.h"
#include "python/layers/layer_box.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "transformer";

struct TransformerBox : LayerBox {
  TransformerBox(const TransformerConfig& c, DType dtype, std::uint64_t init_seed)
      : LayerBox(dtype, init_seed), model(params, c) {}
  Transformer model;
  Transformer::Saved saved;
  std::vector<Index> offsets, source_offsets;
  nb::object ids_object, source_object;
};

template <class E, std::size_t N>
E word_of(const char* name, const std::string& word, const std::string_view (&names)[N]) {
  const auto* found = std::find(std::begin(names), std::end(names), word);
  std::string known;
  for (const std::string_view n : names) known += text(known.empty() ? "" : ", ", n);
  require(found != std::end(names), ErrorKind::bad_argument, kOp, name, " is \"", word, "\"; give one of ",
          known);
  return static_cast<E>(found - std::begin(names));
}

/// Ids [batch tokens], or [tokens] with or without offsets.
struct Ids {
  AnyView flat;
  Sequences sequences;
  Array array;
};
Ids read_ids(const char* name, nb::handle h, nb::handle given_offsets, std::vector<Index>& offsets) {
  Ids ids;
  ids.array = read_array(kOp, name, h);
  const AnyView& v = ids.array.view;
  require((v.dtype == DType::i64 || v.dtype == DType::i32) && (v.rank == 1 || v.rank == 2) &&
              v.step[v.rank - 1] == 1 && (v.rank == 1 || v.step[0] == v.size[1] || v.size[0] <= 1),
          ErrorKind::bad_shape, kOp, name, " is ", v,
          "; give contiguous int64 or int32 [batch tokens], or [tokens] with offsets");
  ids.flat = AnyView::packed(v.data, v.dtype, {v.count()});
  ids.sequences = {.batch = v.rank == 2 ? v.size[0] : 1, .tokens = v.size[v.rank - 1]};
  if (given_offsets.is_none()) return ids;
  offsets = read_indices({kOp, "offsets"}, given_offsets);
  require(v.rank == 1 && !offsets.empty() && offsets.front() == 0 && offsets.back() == v.size[0] &&
              std::is_sorted(offsets.begin(), offsets.end()),
          ErrorKind::bad_shape, kOp, "offsets must rise from 0 to the ", v.count(), " tokens of ", name,
          " [tokens]");
  ids.sequences.offsets = AnyView::packed(offsets.data(), DType::i64, {static_cast<Index>(offsets.size())});
  return ids;
}

struct ModelWords {
  nb::handle ids, source_ids, mask, source_mask, cross_mask, offsets, source_offsets, ctx;
  bool keep, training;
  std::uint64_t seed, step;
};

nb::object run_model(TransformerBox& box, const ModelWords& w) {
  const Turn turn(box.turn);
  box.begin();
  const Ids ids = read_ids("ids", w.ids, w.offsets, box.offsets);
  const bool both = box.model.config().kind == ModelKind::encoder_decoder;
  require(both == !w.source_ids.is_none(), ErrorKind::bad_argument, kOp,
          both ? "an encoder_decoder needs source_ids"
               : "only an encoder_decoder reads source_ids; leave them out");
  TransformerInput in{.ids = ids.flat,
                      .sequences = ids.sequences,
                      .mask = read_mask_set(kOp, "mask", w.mask),
                      .source_mask = read_mask_set(kOp, "source_mask", w.source_mask),
                      .cross_mask = read_mask_set(kOp, "cross_mask", w.cross_mask)};
  if (both) {
    const Ids source = read_ids("source_ids", w.source_ids, w.source_offsets, box.source_offsets);
    in.source_ids = source.flat, in.source_sequences = source.sequences;
  }
  box.ids_object = nb::borrow(w.ids), box.source_object = nb::borrow(w.source_ids);
  box.inputs.mask_object = nb::make_tuple(w.mask, w.source_mask, w.cross_mask);
  box.inputs.training = w.training, box.inputs.seed = w.seed, box.inputs.step = w.step;
  const TransformerConfig& c = box.model.config();
  std::vector<Index> sizes(ids.array.view.size, ids.array.view.size + ids.array.view.rank);
  sizes.push_back(c.kind != ModelKind::encoder ? c.vocabulary : c.outputs > 0 ? c.outputs : c.model_dim);
  MadeArray out = make_array(ids.array.kind, w.ids, box.params.dtype(), sizes);
  if (w.keep) box.params.make_grads();
  run_alone(context_of(kOp, w.ctx), [&](Context& ctx) {
    Call call = box.inputs.call(ctx, box.memory);
    copy_rows(box.model.forward(in, call, w.keep ? &box.saved : nullptr), out.view);
    box.inputs.note_loss(call);
  });
  box.kept = w.keep;
  return out.object;
}

void run_model_backward(TransformerBox& box, nb::handle dy, double loss_weight, nb::handle ctx) {
  const Turn turn(box.turn);
  box.check_kept(kOp);
  RowsArray d;
  d.read(kOp, "dy", dy, nb::none(), box.params.dtype());
  require(d.rows.size[0] == box.saved.rows.size[0], ErrorKind::bad_shape, kOp, "dy is ", d.view,
          " but the forward gave ", box.saved.rows.size[0], " rows; give its sizes");
  run_alone(context_of(kOp, ctx), [&](Context& c) {
    Call call = box.inputs.call_back(c, box.memory, loss_weight);
    box.model.backward(d.rows, call, box.saved);
  });
  box.kept = false;
}

/// [... classes] as [rows classes].
AnyView rows_of_logits(const char* op, const AnyView& v) {
  require(v.rank >= 1, ErrorKind::bad_shape, op, "logits is ", v, "; give [... classes]");
  const Index classes = v.size[v.rank - 1];
  AnyView flat = AnyView::packed(v.data, v.dtype, {classes ? v.count() / classes : 0, classes});
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    require(v.size[axis] <= 1 || v.step[axis] == step, ErrorKind::bad_argument, op, "logits is ", v,
            " with steps of its own; make it contiguous first");
    step *= v.size[axis];
  }
  return flat;
}

template <class Loss>
nb::object loss_of(const char* op, nb::handle logits, nb::handle labels, bool gradient, nb::handle ctx,
                   const Loss& loss) {
  const Array x = read_array(op, "logits", logits), y = read_array(op, "labels", labels);
  MadeArray d;
  if (gradient)
    d = make_array(x.kind, logits, x.view.dtype, {x.view.size, static_cast<std::size_t>(x.view.rank)});
  const AnyView rows = rows_of_logits(op, x.view),
                slopes = gradient ? AnyView::packed(d.view.data, d.view.dtype, {rows.size[0], rows.size[1]})
                                  : AnyView{};
  LossSum sum;
  run_alone(context_of(op, ctx), [&](Context& c) { sum = loss(rows, y.view, slopes, c); });
  if (!gradient) return nb::float_(sum.mean());
  return nb::make_tuple(nb::float_(sum.mean()), d.object);
}

AnyView flat_of(const char* op, const AnyView& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    require(v.size[axis] <= 1 || v.step[axis] == step, ErrorKind::bad_argument, op, "labels is ", v,
            " with steps of its own; make it contiguous first");
    step *= v.size[axis];
  }
  return AnyView::packed(v.data, v.dtype, {v.count()});
}

double share(Index counted) { return counted ? 1 / static_cast<double>(counted) : 0; }

/// Forward, what follows it, and saving.
void bind_model_calls(nb::class_<TransformerBox, LayerBox>& model) {
  const auto run = [](bool keep) {
    return
        [keep](TransformerBox& box, nb::handle ids, nb::handle source_ids, nb::handle mask,
               nb::handle source_mask, nb::handle cross_mask, nb::handle offsets, nb::handle source_offsets,
               bool training, std::uint64_t seed, std::uint64_t step, nb::handle ctx) {
          return run_model(box, {ids, source_ids, mask, source_mask, cross_mask, offsets, source_offsets, ctx,
                                 keep, training, seed, step});
        };
  };
  const auto def = [&](const char* name, bool keep, const char* signature, const char* doc) {
    model.def(name, run(keep), nb::arg("ids"), nb::arg("source_ids") = nb::none(), nb::kw_only(),
              nb::arg("mask") = nb::none(), nb::arg("source_mask") = nb::none(),
              nb::arg("cross_mask") = nb::none(), nb::arg("offsets") = nb::none(),
              nb::arg("source_offsets") = nb::none(), nb::arg("training") = false, nb::arg("seed") = 0,
              nb::arg("step") = 0, nb::arg("ctx") = nb::none(), nb::sig(signature), doc);
  };
  def("__call__", false,
      "def __call__(self, ids: ArrayT, source_ids: ArrayT | None = None, *, mask: Mask | None = None, "
      "source_mask: "
      "Mask | None = None, cross_mask: Mask | None = None, offsets: Sequence[int] | None = None, "
      "source_offsets: "
      "Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | "
      "None = "
      "None) -> ArrayT",
      "Logits [batch tokens vocabulary] of a decoder, rows or outputs of an encoder; nothing is kept.");
  def("forward", true,
      "def forward(self, ids: ArrayT, source_ids: ArrayT | None = None, *, mask: Mask | None = None, "
      "source_mask: "
      "Mask | None = None, cross_mask: Mask | None = None, offsets: Sequence[int] | None = None, "
      "source_offsets: "
      "Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | "
      "None = "
      "None) -> ArrayT",
      "The same, and backward may follow.");
  model.def(
      "backward", &run_model_backward, nb::arg("dy"), nb::kw_only(), nb::arg("loss_weight") = 1.0,
      nb::arg("ctx") = nb::none(),
      nb::sig(
          "def backward(self, dy: Array, *, loss_weight: float = 1.0, ctx: Context | None = None) -> None"),
      "From the gradient of what forward gave; gradients of parameters are added to gradients(). "
      "loss_weight: "
      "that of `loss` in the total loss.");
  model.def(
      "save_decoder",
      [](TransformerBox& box, const std::string& folder, const std::string& tokenizer,
         const std::vector<Index>& ends) {
        const Turn turn(box.turn);
        save_transformer(box.model, box.params, folder, tokenizer, ends);
      },
      nb::arg("folder"), nb::kw_only(), nb::arg("tokenizer") = "", nb::arg("ends") = std::vector<Index>{},
      nb::sig(
          "def save_decoder(self, folder: str, *, tokenizer: str = \"\", ends: Sequence[int] = ()) -> None"),
      "A folder that hw.Decoder and transformers read: a gpt2 or a llama. tokenizer: the text of "
      "tokenizer.json; "
      "ends: ids that end a text.");
}

void bind_losses(nb::module_& m) {
  m.def(
      "cross_entropy",
      [](nb::handle logits, nb::handle labels, double label_smoothing, Index ignore, bool gradient,
         nb::handle ctx) {
        return loss_of("cross_entropy", logits, labels, gradient, ctx,
                       [&](const AnyView& x, const AnyView& y, const AnyView& dx, Context& c) {
                         const AnyView flat = flat_of("cross_entropy", y);
                         return cross_entropy(x, flat, {label_smoothing, ignore}, dx,
                                              share(counted_labels(flat, ignore)), c);
                       });
      },
      nb::arg("logits"), nb::arg("labels"), nb::kw_only(), nb::arg("label_smoothing") = 0.0,
      nb::arg("ignore") = -100, nb::arg("gradient") = false, nb::arg("ctx") = nb::none(),
      nb::sig("def cross_entropy(logits: ArrayT, labels: Array, *, label_smoothing: float = 0.0, ignore: int "
              "= -100, "
              "gradient: bool = False, ctx: Context | None = None) -> float | tuple[float, ArrayT]"),
      "The mean over rows whose label is not `ignore`; with gradient=True also its gradient by the logits.");
  m.def(
      "binary_cross_entropy",
      [](nb::handle logits, nb::handle labels, bool gradient, nb::handle ctx) {
        return loss_of("binary_cross_entropy", logits, labels, gradient, ctx,
                       [&](const AnyView& x, const AnyView& y, const AnyView& dx, Context& c) {
                         AnyView flat = flat_of("binary_cross_entropy", y);
                         flat = AnyView::packed(flat.data, flat.dtype,
                                                {x.size[1] ? flat.size[0] / x.size[1] : 0, x.size[1]});
                         return binary_cross_entropy(x, flat, dx, share(x.count()), c);
                       });
      },
      nb::arg("logits"), nb::arg("labels"), nb::kw_only(), nb::arg("gradient") = false,
      nb::arg("ctx") = nb::none(),
      nb::sig(
          "def binary_cross_entropy(logits: ArrayT, labels: Array, *, gradient: bool = False, ctx: Context | "
          "None = None) -> float | tuple[float, ArrayT]"),
      "The mean over all elements, labels from 0 to 1; with gradient=True also its gradient by the logits.");
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<TransformerBox, LayerBox> model(m, "Transformer",
                                             "An encoder, a decoder or both over any head, from one config.");
  model.def(
      "__init__",
      [](TransformerBox* self, const std::string& kind, Index vocabulary, Index source_vocabulary,
         Index model_dim, Index feed_dim, Index depth, Index source_depth, nb::handle heads,
         const std::string& positions, Index max_tokens, const std::string& feed, const std::string& norm,
         bool norm_first, bool bias, double dropout, double attention_dropout, Index share_layers,
         double ds_init, bool merged_attention, bool tied, Index outputs, nb::handle dtype,
         std::uint64_t seed) {
        constexpr std::string_view kNorm[] = {"layer", "rms"};
        const TransformerConfig c{.kind = word_of<ModelKind>("kind", kind, kModelNames),
                                  .vocabulary = vocabulary,
                                  .source_vocabulary = source_vocabulary,
                                  .model_dim = model_dim,
                                  .feed_dim = feed_dim,
                                  .depth = depth,
                                  .source_depth = source_depth,
                                  .heads = settings_of(kOp, heads),
                                  .positions = word_of<Positions>("positions", positions, kPositionNames),
                                  .max_tokens = max_tokens,
                                  .feed = word_of<FeedKind>("feed", feed, kFeedNames),
                                  .norm = {.kind = word_of<NormKind>("norm", norm, kNorm)},
                                  .norm_first = norm_first,
                                  .bias = bias,
                                  .dropout = dropout,
                                  .attention_dropout = attention_dropout,
                                  .share_layers = share_layers,
                                  .ds_init = ds_init,
                                  .merged_attention = merged_attention,
                                  .tied = tied,
                                  .outputs = outputs};
        new (self) TransformerBox(c, read_layer_dtype(kOp, dtype), seed);
      },
      nb::arg("kind"), nb::arg("vocabulary"), nb::kw_only(), nb::arg("source_vocabulary") = 0,
      nb::arg("model_dim") = 512, nb::arg("feed_dim") = 2048, nb::arg("depth") = 6,
      nb::arg("source_depth") = 0, nb::arg("heads") = "mha:heads=8,dim=64", nb::arg("positions") = "learned",
      nb::arg("max_tokens") = 512, nb::arg("feed") = "gelu", nb::arg("norm") = "layer",
      nb::arg("norm_first") = true, nb::arg("bias") = true, nb::arg("dropout") = 0.0,
      nb::arg("attention_dropout") = 0.0, nb::arg("share_layers") = 1, nb::arg("ds_init") = 0.0,
      nb::arg("merged_attention") = false, nb::arg("tied") = true, nb::arg("outputs") = 0,
      nb::arg("dtype") = "f32", nb::arg("seed") = 0,
      nb::sig(
          "def __init__(self, kind: str, vocabulary: int, *, source_vocabulary: int = 0, model_dim: int = "
          "512, "
          "feed_dim: int = 2048, depth: int = 6, source_depth: int = 0, heads: Head | str = "
          "\"mha:heads=8,dim=64\", "
          "positions: str = \"learned\", max_tokens: int = 512, feed: str = \"gelu\", norm: str = \"layer\", "
          "norm_first: bool = True, bias: bool = True, dropout: float = 0.0, attention_dropout: float = 0.0, "
          "share_layers: int = 1, ds_init: float = 0.0, merged_attention: bool = False, tied: bool = True, "
          "outputs: int = 0, dtype: str = \"f32\", seed: int = 0) -> None"),
      "kind: encoder, decoder or encoder_decoder. positions: none, learned, sinusoidal, rope or alibi.");
  bind_model_calls(model);
  bind_losses(m);
}

}  // namespace headwise::python
