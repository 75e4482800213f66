#include "headwise/decoder/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "headwise/base/error.h"
#include "headwise/base/random.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "sampling";
constexpr double kClosed = -std::numeric_limits<double>::infinity();

struct Candidate {
  TokenId id;
  double logit;
};
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

void penalize(std::vector<double>& l, const SamplingOptions& o, const History& history) {
  if (o.repetition_penalty == 1 && o.frequency_penalty == 0 && o.presence_penalty == 0) return;
  std::map<TokenId, std::pair<bool, Index>> seen;  // anywhere, times in the output
  for (const TokenId id : history.prompt) seen[id].first = true;
  for (const TokenId id : history.output) seen[id].first = true, ++seen[id].second;
  for (const auto& [id, times] : seen) {
    if (id < 0 || id >= static_cast<TokenId>(l.size())) continue;
    double& x = l[static_cast<std::size_t>(id)];
    x = x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty;
    if (times.second > 0) x -= o.frequency_penalty * static_cast<double>(times.second) + o.presence_penalty;
  }
}

/// Those left, likeliest first where top_k or top_p had to sort them, else by id.
std::vector<Candidate> kept(const std::vector<double>& l, const SamplingOptions& o) {
  double most = kClosed;
  for (const double x : l) most = std::max(most, x);
  std::vector<Candidate> all;
  const double least = o.min_p > 0 ? most + std::log(o.min_p) : kClosed;
  for (std::size_t i = 0; i < l.size(); ++i)
    if (l[i] != kClosed && l[i] >= least) all.push_back({static_cast<TokenId>(i), l[i]});
  if (o.top_k > 0 && o.top_k < static_cast<Index>(all.size())) {
    std::partial_sort(all.begin(), all.begin() + o.top_k, all.end(), before);
    all.resize(static_cast<std::size_t>(o.top_k));
  }
  if (o.top_p < 1) {
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    double sum = 0, part = 0;
    for (const Candidate& c : all) sum += std::exp(c.logit - most);
    std::sort(all.begin(), all.end(), before);
    std::size_t n = 0;
    while (n < all.size() && (n == 0 || part < o.top_p * sum)) part += std::exp(all[n++].logit - most);
    all.resize(n);
  }
  return all;
}

TokenId noisy_best(const std::vector<Candidate>& all, std::uint64_t seed, Index position) {
  TokenId best = -1;
  double most = 0;
  for (const Candidate& c : all) {
    const auto at = static_cast<std::uint64_t>(position);
    const Philox::Block block =
        Philox::block(seed, {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                             static_cast<std::uint32_t>(c.id) / 4, 0});
    const double u = (static_cast<double>(block[static_cast<std::size_t>(c.id % 4)]) + 0.5) / 4294967296.0;
    const double noisy = c.logit - std::log(-std::log(u));
    if (best < 0 || noisy > most || (noisy == most && c.id < best)) best = c.id, most = noisy;
  }
  return best;
}

void add_logprobs(std::span<const float> logits, Index top, Drawn& drawn) {
  double most = kClosed, sum = 0;
  for (const float x : logits) most = std::max(most, static_cast<double>(x));
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  const double whole = most + std::log(sum);
  drawn.logprob = static_cast<double>(logits[static_cast<std::size_t>(drawn.token)]) - whole;
  if (top == 0) return;
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < logits.size(); ++i)
    all.push_back({static_cast<TokenId>(i), static_cast<double>(logits[i])});
  const Index n = std::min(top, static_cast<Index>(all.size()));
  std::partial_sort(all.begin(), all.begin() + n, all.end(), before);
  bool among = false;
  for (Index i = 0; i < n; ++i) {
    const Candidate& c = all[static_cast<std::size_t>(i)];
    drawn.top.push_back({c.id, c.logit - whole});
    among = among || c.id == drawn.token;
  }
  if (!among) drawn.top.push_back({drawn.token, drawn.logprob});
}

/// The largest logit where nothing moves or closes any; -1: that takes more than a look.
TokenId plain_best(std::span<const float> logits, const SamplingOptions& o, const DrawPlace& place) {
  const bool moved = o.temperature != 0 || !o.bias.empty() || o.repetition_penalty != 1 ||
                     o.frequency_penalty != 0 || o.presence_penalty != 0;
  if (moved || !place.closed.empty() || logits.empty()) return -1;
  std::size_t count = logits.size();
  if (place.tokens > 0) count = std::min(count, static_cast<std::size_t>(place.tokens));
  int numbers = 1;
  for (const float x : logits) numbers &= static_cast<int>(x == x);
  if (numbers == 0) return -1;
  float most = logits[0];
  for (const float x : logits.first(count)) most = x > most ? x : most;
  if (most == -std::numeric_limits<float>::infinity()) return -1;
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), most) - logits.begin());
}

/// Of all logits after bias, closed ids, penalties and what the options keep.
TokenId drawn_of(std::span<const float> logits, const SamplingOptions& o, const History& history,
                 const DrawPlace& place) {
  std::vector<double> l;
  l.reserve(logits.size());
  for (const float x : logits) {
    require(!std::isnan(x), ErrorKind::bad_argument, kOp, "the model gave NaN for token ", l.size(),
            "; its weights or this text are broken");
    l.push_back(static_cast<double>(x));
  }
  for (const auto& [id, value] : o.bias) l[static_cast<std::size_t>(id)] += value;
  for (const TokenId id : place.closed)
    if (id >= 0 && id < static_cast<TokenId>(l.size())) l[static_cast<std::size_t>(id)] = kClosed;
  if (place.tokens > 0)
    for (std::size_t i = static_cast<std::size_t>(place.tokens); i < l.size(); ++i) l[i] = kClosed;
  penalize(l, o, history);
  if (o.temperature == 0) {
    const auto best = std::max_element(l.begin(), l.end());
    return best != l.end() && *best != kClosed ? static_cast<TokenId>(best - l.begin()) : -1;
  }
  for (double& x : l) x /= o.temperature;
  return noisy_best(kept(l, o), o.seed, place.position);
}

}  // namespace

void SamplingOptions::check(Index vocabulary) const {
  const auto range = [](const char* what, double got, double low, double high) {
    require(got >= low && got <= high, ErrorKind::bad_argument, kOp, what, " is ", got, "; it runs from ",
            low, " to ", high);
  };
  range("temperature", temperature, 0, 100);
  require(temperature == 0 || temperature >= 1e-3, ErrorKind::bad_argument, kOp, "temperature is ",
          temperature, "; it is 0, or from 0.001 to 100");
  range("min_p", min_p, 0, 1);
  range("top_p", top_p, 1e-9, 1);
  range("repetition_penalty", repetition_penalty, 0.01, 100);
  range("frequency_penalty", frequency_penalty, -100, 100);
  range("presence_penalty", presence_penalty, -100, 100);
  require(top_k >= 0, ErrorKind::bad_argument, kOp, "top_k is ", top_k, "; it is 0 for all tokens, or above");
  for (const auto& [id, value] : bias) {
    require(id >= 0 && id < vocabulary, ErrorKind::bad_argument, kOp, "bias names token ", id,
            "; ids run from 0 to ", vocabulary - 1);
    range("a bias", value, -1000, 1000);
  }
}

Drawn draw(std::span<const float> logits, const SamplingOptions& o, const History& history,
           const DrawPlace& place) {
  Drawn drawn;
  drawn.token = plain_best(logits, o, place);
  if (drawn.token < 0) drawn.token = drawn_of(logits, o, history, place);
  require(drawn.token >= 0, ErrorKind::bad_argument, kOp,
          "every token is closed; open one by fewer biases or closed ids");
  if (place.logprobs || place.top > 0) add_logprobs(logits, place.top, drawn);
  return drawn;
}

}  // namespace headwise
