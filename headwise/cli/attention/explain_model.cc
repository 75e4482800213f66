#include "headwise/cli/attention/explain_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/decoder/decoder_host.h"
#include "headwise/decoder/files/source.h"
#include "headwise/ops/explain/roofline.h"

namespace headwise::cli {
namespace {

/// Numbers of one step, in units of one: weights are read once for all texts, keys and values for each.
struct StepSizes {
  double attention = 0, feed = 0, norms = 0, logits = 0;  // numbers of weights that a step reads
  double kv_numbers = 0, kv_scales = 0;                   // of all texts
  double pair_flops = 0;                                  // scores and mixes of all texts
  double weights() const { return attention + feed + norms + logits; }
};

StepSizes sizes_of(const DecoderConfig& c, Index context, Index batch, bool scaled) {
  const auto n = [](Index x) { return static_cast<double>(x); };
  StepSizes s;
  const double d = n(c.model_dim), q = n(c.heads * c.head_dim), kv = n(c.kv_heads * c.head_dim);
  s.attention = n(c.layers) * (d * (q + 2 * kv) + q * d);
  s.feed = n(c.layers) * (c.gated ? 3 : 2) * d * n(c.feed_dim);
  const double rows = c.norm == NormKind::layer ? 2 : 1;  // a weight, or a weight and a bias
  s.norms = rows * d * (n(c.layers) * (c.norms_behind ? 4 : 2) + 1) +
            (c.head_norms ? 2 * n(c.layers * c.head_dim) : 0);
  if (c.qkv_bias) s.norms += n(c.layers) * (q + 2 * kv);
  if (c.out_bias) s.norms += n(c.layers) * d;
  if (c.feed_bias) s.norms += n(c.layers) * (d + (c.gated ? 2 : 1) * n(c.feed_dim));
  s.logits = n(c.vocabulary) * d;
  for (Index i = 0; i < c.layers; ++i) {
    const double seen = n(c.window(i) > 0 ? std::min(c.window(i), context) : context);
    s.kv_numbers += n(batch) * seen * 2 * kv;
    if (scaled) s.kv_scales += n(batch) * seen * 2 * n(c.kv_heads);
    s.pair_flops += n(batch) * seen * 4 * q;
  }
  return s;
}

/// Bytes of what a step reads of the weights. Norms and biases are f32.
struct StepBytes {
  double attention = 0, feed = 0, norms = 0, logits = 0;
  double all() const { return attention + feed + norms + logits; }
};

/// Matrices in `dtype`, or as the file has them.
StepBytes bytes_of(DecoderSource& source, const StepSizes& s, std::optional<DType> dtype) {
  StepBytes b;
  b.norms = s.norms * 4;
  if (dtype.has_value()) {
    const auto each = static_cast<double>(size_of(*dtype));
    b.attention = s.attention * each, b.feed = s.feed * each, b.logits = s.logits * each;
    return b;
  }
  const DecoderConfig& c = source.config();
  const auto matrix = [&](const std::string& name, Index rows, Index columns) {
    source.check(name, rows, columns);
    const StoredFacts& facts = facts_of(source.format(name));
    const Index blocks = columns / facts.numbers;
    return static_cast<double>(rows) * static_cast<double>(blocks * facts.bytes);
  };
  const Index d = c.model_dim, q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (Index i = 0; i < c.layers; ++i) {
    const std::string at = text("layers.", i, ".");
    b.attention += matrix(at + "q.weight", q, d) + matrix(at + "k.weight", kv, d) +
                   matrix(at + "v.weight", kv, d) + matrix(at + "o.weight", d, q);
    if (c.gated) b.feed += matrix(at + "gate.weight", c.feed_dim, d);
    b.feed += matrix(at + "up.weight", c.feed_dim, d) + matrix(at + "down.weight", d, c.feed_dim);
  }
  b.logits = matrix(c.tied ? "embed" : "head", c.vocabulary, d);
  return b;
}

std::string size_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} KB", bytes / 1e3);
}

}  // namespace

int explain_model(const ModelStep& step) {
  const auto source = open_decoder(step.model);
  const DecoderConfig& c = source->config();
  const std::optional<DType> dtype = weights_dtype_named("explain: --dtype", step.dtype);
  const DType kv_dtype = kv_dtype_named("explain: --kv-dtype", step.kv_dtype);
  require(step.context >= 1 && step.context <= c.positions, ErrorKind::bad_argument, "explain",
          "--context is ", step.context, "; the model has ", c.positions, " positions");
  require(step.batch >= 1, ErrorKind::bad_argument, "explain", "--batch is ", step.batch, "; give 1 or more");
  const bool scaled = kv_dtype == DType::i8 || kv_dtype == DType::e4m3;
  const StepSizes s = sizes_of(c, step.context, step.batch, scaled);
  const auto kv_each = static_cast<double>(size_of(kv_dtype));
  const StepBytes read_bytes = bytes_of(*source, s, dtype);
  const double weights = read_bytes.all();
  const double kv = s.kv_numbers * kv_each + s.kv_scales * 4;
  const auto batch = static_cast<double>(step.batch);
  const double flops = 2 * batch * (s.attention + s.feed + s.logits) + s.pair_flops;
  Roofline roof{.peak_gflops = step.peak_gflops, .read_gbytes = step.read_gbytes};
  if (roof.peak_gflops <= 0 || roof.read_gbytes <= 0) {
    const Roofline seen = measure_roofline(Context({.threads = step.threads}).threads());
    if (roof.peak_gflops <= 0) roof.peak_gflops = seen.peak_gflops;
    if (roof.read_gbytes <= 0) roof.read_gbytes = seen.read_gbytes;
  }
  const double read = (weights + kv) / (roof.read_gbytes * 1e9), work = flops / (roof.peak_gflops * 1e9);
  const double seconds = std::max(read, work);
  const StepSizes one = sizes_of(c, 1, 1, scaled);
  const double token = one.kv_numbers * kv_each + one.kv_scales * 4;
  if (step.json) {
    const nlohmann::ordered_json j = {{"family", c.family},
                                      {"weights", s.weights()},
                                      {"weight_bytes", weights},
                                      {"weight_bytes_of",
                                       {{"attention", read_bytes.attention},
                                        {"feed_forward", read_bytes.feed},
                                        {"norms", read_bytes.norms},
                                        {"logits", read_bytes.logits}}},
                                      {"kv_bytes", kv},
                                      {"kv_bytes_a_token", token},
                                      {"flops", flops},
                                      {"intensity", flops / (weights + kv)},
                                      {"ridge", roof.ridge()},
                                      {"read_gbytes", roof.read_gbytes},
                                      {"peak_gflops", roof.peak_gflops},
                                      {"bound", read >= work ? "bytes" : "arithmetic"},
                                      {"seconds", seconds},
                                      {"tokens_a_second", batch / seconds}};
    fmt::print("{}\n", j.dump());
    return kDone;
  }
  fmt::print("{}: {} layers, model_dim {}, {} heads on {} kv_heads of {}, {:.1f} M weights\n", c.family,
             c.layers, c.model_dim, c.heads, c.kv_heads, c.head_dim, s.weights() / 1e6);
  fmt::print("one step: {} text{}, {} tokens of context each; weights {}, keys and values in {}\n\n",
             step.batch, step.batch == 1 ? "" : "s", step.context,
             dtype.has_value() ? "in " + step.dtype : "as stored", step.kv_dtype);
  const auto row = [&](const char* name, double bytes) {
    fmt::print("  {:<14}{:>12}  {:>5.1f} %\n", name, size_text(bytes), 100 * bytes / (weights + kv));
  };
  row("attention", read_bytes.attention), row("feed-forward", read_bytes.feed);
  row("norms, biases", read_bytes.norms), row("logits", read_bytes.logits);
  row("keys, values", kv), row("all", weights + kv);
  fmt::print("\n  a token of context takes {}\n", size_text(token));
  fmt::print("  {:.2f} GFLOP, {:.2f} FLOP a byte; the ridge of this machine is {:.1f}\n", flops / 1e9,
             flops / (weights + kv), roof.ridge());
  fmt::print("  roof: {:.1f} tokens/s, {:.1f} a text, bound by {} ({:.1f} GB/s, {:.0f} GFLOP/s)\n",
             batch / seconds, 1 / seconds, read >= work ? "bytes" : "arithmetic", roof.read_gbytes,
             roof.peak_gflops);
  return kDone;
}

}  // namespace headwise::cli
