// translate: trains an encoder-decoder on pairs of sentences and translates a test set, one greedy token at a
// time.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "headwise/headwise.h"
#include "headwise/text/bpe.h"

namespace hw = headwise;

namespace {

using Tokens = std::vector<std::int32_t>;
constexpr hw::Index kMostTokens = 96, kVocabulary = 4000, kTestRows = 100;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.empty()) {
    std::cerr << "translate: " << path << " has no lines; see translate.py\n";
    std::exit(2);
  }
  return lines;
}

/// Sequences one after the other, without padding.
struct Ragged {
  Tokens ids;
  std::vector<hw::Index> offsets{0};

  void add(const Tokens& tokens) {
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    offsets.push_back(static_cast<hw::Index>(ids.size()));
  }
  hw::AnyView view() {
    return hw::AnyView::packed(ids.data(), hw::DType::i32, {static_cast<hw::Index>(ids.size())});
  }
  hw::Sequences sequences() {
    return {.offsets = hw::AnyView::packed(offsets.data(), hw::DType::i64,
                                           {static_cast<hw::Index>(offsets.size())})};
  }
};

struct Pair {
  Tokens source, target;  // without begin and end
};

class Translator {
 public:
  Translator(const hw::Transformer& model, hw::Context& ctx, std::int32_t begin)
      : model_(model), ctx_(ctx), begin_(begin), end_(begin + 1) {}

  /// Mean cross-entropy of some pairs; with `micro`, its gradient is added.
  double loss(const std::vector<const Pair*>& pairs, const hw::MicroBatch* micro) {
    Ragged source, inputs, labels;
    for (const Pair* p : pairs) {
      source.add(with(p->source, {}, end_));
      inputs.add(with(p->target, begin_, {}));
      labels.add(with(p->target, {}, end_));
    }
    memory_.reset();
    hw::Call call{.ctx = ctx_, .memory = memory_};
    if (micro)
      call.training = true, call.seed = micro->seed, call.step = static_cast<std::uint64_t>(micro->step);
    const hw::AnyView logits = model_.forward(input(source, inputs), call, micro ? &saved_ : nullptr);
    const hw::CrossEntropyOptions options{.label_smoothing = micro ? 0.1 : 0.0};
    if (!micro) return hw::cross_entropy(logits, labels.view(), options, ctx_).mean();
    const hw::AnyView dlogits = memory_.take(logits.dtype, {logits.size[0], logits.size[1]});
    const double share = micro->weight / static_cast<double>(logits.size[0]);
    const hw::LossSum sum = hw::cross_entropy(logits, labels.view(), options, dlogits, share, ctx_);
    model_.backward(dlogits, call, saved_);
    return sum.mean();
  }

  /// The most probable token again and again, until the end, or twice the source's tokens and 5. The decoder
  /// reads all tokens of a sentence again for each new one.
  std::vector<Tokens> translate(const std::vector<Tokens>& sources) {
    std::vector<Tokens> found(sources.size());
    std::vector<std::size_t> open(sources.size());
    for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
    for (hw::Index step = 0; step < kMostTokens - 1 && !open.empty(); ++step) {
      Ragged source, inputs;
      for (const std::size_t i : open)
        source.add(with(sources[i], {}, end_)), inputs.add(with(found[i], begin_, {}));
      memory_.reset();
      hw::Call call{.ctx = ctx_, .memory = memory_};
      const hw::AnyView logits = model_.forward(input(source, inputs), call, nullptr);
      std::vector<std::size_t> still;
      for (std::size_t n = 0; n < open.size(); ++n) {
        const float* row =
            static_cast<const float*>(logits.data) + (inputs.offsets[n + 1] - 1) * logits.step[0];
        const auto token = static_cast<std::int32_t>(std::max_element(row, row + logits.size[1]) - row);
        if (token >= begin_) continue;
        found[open[n]].push_back(token);
        if (found[open[n]].size() < 2 * sources[open[n]].size() + 5) still.push_back(open[n]);
      }
      open = still;
    }
    return found;
  }

 private:
  static Tokens with(const Tokens& tokens, std::optional<std::int32_t> before,
                     std::optional<std::int32_t> after) {
    Tokens all;
    if (before) all.push_back(*before);
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (after) all.push_back(*after);
    return all;
  }
  static hw::TransformerInput input(Ragged& source, Ragged& target) {
    return {.ids = target.view(),
            .source_ids = source.view(),
            .sequences = target.sequences(),
            .source_sequences = source.sequences()};
  }

  const hw::Transformer& model_;
  hw::Context& ctx_;
  std::int32_t begin_, end_;
  hw::StepMemory memory_;
  hw::Transformer::Saved saved_;
};

}  // namespace

// Arguments: folder steps rows. The folder holds train.en, train.de, val.en, val.de, test.en; test.hyp is
// written. The last line of output is JSON.
int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "translate: give folder steps rows\n";
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  const hw::Index steps = std::atoll(argv[2]), rows = std::atoll(argv[3]);
  const auto seconds = [start = std::chrono::steady_clock::now()] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::string text;
  for (const char* language : {"train.en", "train.de"})
    for (const std::string& line : lines_of(folder + language)) text += line + "\n";
  const hw::Bpe bpe = hw::Bpe::train(text, kVocabulary);
  const auto pairs_of = [&](const std::string& name) {
    const std::vector<std::string> from = lines_of(folder + name + ".en"),
                                   to = lines_of(folder + name + ".de");
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
      Pair p{bpe.encode(from[i]), bpe.encode(to[i])};
      if (std::max(p.source.size(), p.target.size()) < kMostTokens) pairs.push_back(std::move(p));
    }
    return pairs;
  };
  const std::vector<Pair> train = pairs_of("train"), val = pairs_of("val");

  hw::Context ctx;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  hw::TransformerConfig config{.kind = hw::ModelKind::encoder_decoder, .vocabulary = bpe.vocabulary() + 2};
  config.model_dim = 128, config.feed_dim = 512, config.depth = 3, config.heads = "mha:heads=4,dim=32";
  config.max_tokens = kMostTokens, config.dropout = 0.1, config.scaled_embedding = true;
  config.positions = hw::Positions::sinusoidal;
  const hw::Transformer model(params, config);
  hw::Optimizer optimizer(params, hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9, .weight_decay = 0.01});
  Translator translator(model, ctx, static_cast<std::int32_t>(bpe.vocabulary()));
  hw::TrainerOptions options{.steps = steps, .micro_rows = rows, .clip = 1};
  options.rate = hw::Schedule::cosine(1e-3, std::min<hw::Index>(300, steps / 4), steps);
  options.out = &std::cerr, options.seed = 1;
  const double before = seconds();
  const hw::TrainResult result = hw::Trainer(optimizer, static_cast<hw::Index>(train.size()), options, ctx)
                                     .run([&](const hw::MicroBatch& m) {
                                       std::vector<const Pair*> pairs;
                                       for (const hw::Index e : m.examples)
                                         pairs.push_back(&train[static_cast<std::size_t>(e)]);
                                       return translator.loss(pairs, &m);
                                     });
  const double trained = seconds();

  double sum = 0;
  hw::Index counted = 0;
  for (std::size_t i = 0; i < val.size(); i += kTestRows) {
    std::vector<const Pair*> pairs;
    hw::Index tokens = 0;
    for (std::size_t j = i; j < std::min(val.size(), i + kTestRows); ++j)
      pairs.push_back(&val[j]), tokens += static_cast<hw::Index>(val[j].target.size()) + 1;
    sum += translator.loss(pairs, nullptr) * static_cast<double>(tokens), counted += tokens;
  }
  const double judged = seconds();

  std::vector<Tokens> sources;
  for (const std::string& line : lines_of(folder + "test.en")) {
    sources.push_back(bpe.encode(line));
    if (sources.back().size() > kMostTokens - 1) sources.back().resize(kMostTokens - 1);
  }
  std::ofstream out(folder + "test.hyp");
  for (std::size_t i = 0; i < sources.size(); i += kTestRows) {
    const std::size_t end = std::min(sources.size(), i + kTestRows);
    const auto at = [&](std::size_t n) { return sources.begin() + static_cast<std::ptrdiff_t>(n); };
    for (const Tokens& tokens : translator.translate({at(i), at(end)})) out << bpe.decode(tokens) << "\n";
  }
  std::cout << "{\"pairs\": " << train.size() << ", \"vocabulary\": " << config.vocabulary
            << ", \"parameters\": " << params.count() << ", \"steps\": " << result.step
            << ", \"rows\": " << rows << ", \"threads\": " << ctx.threads()
            << ", \"train_loss\": " << result.loss
            << ", \"val_nats_per_token\": " << sum / static_cast<double>(counted)
            << ", \"train_seconds\": " << trained - before << ", \"decode_seconds\": " << seconds() - judged
            << "}\n";
}
