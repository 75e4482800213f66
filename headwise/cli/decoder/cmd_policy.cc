// headwise policy: which kv heads of a decoder need all tokens, and what a window for the others costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/decoder/forward/decoder.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string model, texts, out, keep;
  Index window = 256, first = 16, tokens = 1024;
  double share = 0.5;
  int threads = 0;
};

class Survey {
 public:
  explicit Survey(const Request& r)
      : request_(r),
        ctx_({.threads = r.threads}),
        source_(open_decoder(r.model)),
        model_(*source_, {}, ctx_) {
    require(source_->tokenizer() != nullptr, ErrorKind::bad_argument, "policy", r.model,
            ": no tokenizer lies beside the model; put its tokenizer.bin or tokenizer.json there");
    tokens_ = source_->tokenizer()->encode(read_text(r.texts, Index{64} << 20, "policy"));
    const Index most = std::min(r.tokens, model_.config().positions);
    if (static_cast<Index>(tokens_.size()) > most) tokens_.resize(static_cast<std::size_t>(most));
    if (!r.keep.empty()) policy_ = parse_head_policy(r.keep);
    from_ = r.keep.empty() ? r.window : static_cast<Index>(tokens_.size()) / 2;
    require(!r.keep.empty() || static_cast<Index>(tokens_.size()) > r.window + 1, ErrorKind::bad_argument,
            "policy", r.texts, " has ", tokens_.size(), " tokens; give more than the window of ", r.window,
            ", or a smaller window");
  }

  void run() {
    const KvShape s = model_.kv_shape();
    const auto heads = static_cast<std::size_t>(s.layers * s.kv_heads);
    std::vector<HeadPolicy> plan(heads);
    const double full = loss(plan);
    std::vector<double> price(heads);
    for (std::size_t h = 0; h < heads; ++h) {
      plan[h] = policy_;
      price[h] = loss(plan) - full;
      plan[h] = {};
    }
    std::vector<std::size_t> order(heads);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return price[a] < price[b]; });
    const auto streaming = static_cast<std::size_t>(std::floor(request_.share * static_cast<double>(heads)));
    for (std::size_t i = 0; i < streaming; ++i) plan[order[i]] = policy_;
    write(plan, price, full, loss(plan));
  }

 private:
  /// Mean of -ln p of the next token, over all tokens behind the window, or the second half of the text.
  double loss(const std::vector<HeadPolicy>& plan) {
    const KvShape s = model_.kv_shape();
    const Index n = static_cast<Index>(tokens_.size()),
                token = s.layers * s.kv_heads * (s.head_dim + s.value_dim) * 4;
    KvCache cache(s, {.bytes = (n + 64) * 2 * token, .heads = plan, .drop = false});
    const SequenceId id = cache.open();
    cache.set_prompt(id, n / 2);
    double sum = 0;
    Index counted = 0;
    constexpr Index kChunk = 64;
    for (Index begin = 0, rows = 0; begin + 1 < n; begin += rows) {
      rows = std::min({kChunk, n - 1 - begin, cache.most_rows(id)});
      std::vector<DecoderRow> list;
      for (Index i = begin; i < begin + rows; ++i)
        list.push_back({id, tokens_[static_cast<std::size_t>(i)], i >= from_});
      require(cache.reserve(id, rows), ErrorKind::out_of_memory, "policy",
              "there is no memory for the keys and values of ", n, " tokens; give fewer with --tokens");
      model_.forward(list, cache, step_, ctx_);
      cache.commit(
          id, std::span(tokens_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)));
      Index asked = 0;
      for (Index i = std::max(begin, from_); i < begin + rows; ++i, ++counted)
        sum -= log_prob(step_.logits(asked++), tokens_[static_cast<std::size_t>(i + 1)]);
    }
    return sum / static_cast<double>(counted);
  }
  static double log_prob(std::span<const float> logits, TokenId token) {
    const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double all = 0;
    for (const float l : logits) all += std::exp(static_cast<double>(l) - top);
    return static_cast<double>(logits[static_cast<std::size_t>(token)]) - top - std::log(all);
  }

  void write(const std::vector<HeadPolicy>& plan, const std::vector<double>& price, double full,
             double planned) const {
    const KvShape s = model_.kv_shape();
    const Index n = static_cast<Index>(tokens_.size());
    double kept = 0;
    nlohmann::ordered_json heads, prices;
    for (Index layer = 0; layer < s.layers; ++layer) {
      nlohmann::ordered_json texts, numbers;
      for (Index h = 0; h < s.kv_heads; ++h) {
        const auto i = static_cast<std::size_t>(layer * s.kv_heads + h);
        texts.push_back(to_text(plan[i])), numbers.push_back(price[i]);
        const HeadPolicy& p = plan[i];
        const Index kept_tokens = p.window > 0  ? p.window + p.first
                                  : p.heavy > 0 ? p.heavy + p.recent + p.first
                                  : p.snap > 0  ? p.snap + p.look + n - n / 2
                                                : n;
        const Index tokens = std::min(n, kept_tokens);
        kept += static_cast<double>(tokens) / static_cast<double>(n);
      }
      heads.push_back(texts), prices.push_back(numbers);
    }
    const double share = kept / static_cast<double>(plan.size());
    const nlohmann::ordered_json all = {
        {"model", request_.model}, {"tokens", n},    {"loss_full", full},         {"loss_planned", planned},
        {"keys_kept", share},      {"heads", heads}, {"loss_of_one_head", prices}};
    Replacement out(request_.out, "policy");
    out.file().write(all.dump(1) + "\n");
    out.commit();
    fmt::print("{}: loss {:.4f} with all tokens, {:.4f} with the plan; keys kept of {} tokens: {:.0f} %\n",
               request_.out, full, planned, n, 100 * share);
  }

  const Request& request_;
  Context ctx_;
  std::unique_ptr<DecoderSource> source_;
  Decoder model_;
  DecoderStep step_;
  std::vector<TokenId> tokens_;
  HeadPolicy policy_{.window = request_.window, .first = request_.first};
  Index from_ = 0;  // the first token whose loss counts
};

}  // namespace

void add_policy(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("policy", "Find heads of a decoder that need a window alone");
  word->footer(
      "Example: headwise policy model.gguf --texts book.txt --window 256 --out plan.json\n"
      "Every kv head gets the window alone once; those whose loss grows least get it in the plan.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder with config.json, a .gguf file or a llama2.c .bin file")
      ->required();
  word->add_option("--texts", r->texts, "Text file to measure on")->required();
  word->add_option("--out", r->out, "The plan, for headwise generate --policy")->required();
  word->add_option("--window", r->window, "Tokens a head keeps, the own one counted")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--first", r->first, "First tokens it keeps beside them")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--keep", r->keep, "A policy instead of the window, e.g. heavy:64,recent:32,first:4");
  word->add_option("--share", r->share, "Of the heads that get the window")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  word->add_option("--tokens", r->tokens, "Of the text, at most")
      ->check(size_check(2))
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] {
    Survey(*r).run();
    exit_code = kDone;
  });
}

}  // namespace headwise::cli
