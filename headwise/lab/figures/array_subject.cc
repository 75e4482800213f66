#include "headwise/lab/figures/array_subject.h"

#include <cmath>

#include "headwise/base/error.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";
constexpr double kRowError = 1e-2;  // weights of 16 bits round that far

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A row of weights: no entry below 0, none behind a causal query, and a sum of 1.
void check_row(const float* row, Index tokens, Index open, const std::string& where) {
  double sum = 0;
  bool bad = false;
  for (Index j = 0; j < tokens; ++j) {
    const double w = row[j];
    bad |= !(w >= 0) || (j >= open && w != 0);
    sum += w;
  }
  require(!bad && std::abs(sum - 1) <= kRowError, ErrorKind::bad_argument, kOp, where, " sums to ", sum,
          bad ? " with entries that are no weights" : "",
          "; give weights behind the softmax, and causal=True only where keys behind a query have none");
}

}  // namespace

ArraySubject::ArraySubject(const std::vector<TextArrays>& texts, std::vector<Index> heads, bool causal,
                           bool shuffle, std::uint64_t seed)
    : texts_(texts), heads_(std::move(heads)), causal_(causal), shuffle_(shuffle), seed_(seed) {
  require(!texts.empty() && !heads_.empty(), ErrorKind::bad_argument, kOp, "got ", texts.size(),
          " texts and ", heads_.size(), " layers of weights; give one or more of each");
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const auto n = static_cast<Index>(texts[t].tokens.size());
    for (std::size_t layer = 0; layer < heads_.size(); ++layer)
      for (Index row = 0; row < heads_[layer] * n; ++row)
        check_row(texts[t].weights[layer] + row * n, n, causal ? row % n + 1 : n,
                  text("row ", row % n, " of text ", t, ", layer ", layer, ", head ", row / n));
  }
}

std::vector<std::string> ArraySubject::names() const {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < texts_.size(); ++i) all.push_back(text(i));
  return all;
}

SurveyTokens ArraySubject::read(const std::string& name, Index most) const {
  const std::size_t number = std::stoul(name);
  SurveyTokens tokens = texts_[number].tokens;
  require(static_cast<Index>(tokens.size()) <= most, ErrorKind::bad_argument, kOp, "text ", number, " has ",
          tokens.size(), " tokens, more than the ", most, " that are read; weights cannot be shortened");
  tokens.number = static_cast<Index>(number);
  return tokens;
}

SurveyTokens ArraySubject::repeated(std::uint64_t, Index) const {
  throw Error(ErrorKind::unsupported, text(kOp, ": arrays cannot read random tokens; ask for no repeats"));
}

void ArraySubject::run(std::span<const SurveyTokens> texts, bool values, const Look& look) {
  std::vector<float> mixed;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const TextArrays& own = texts_[at(texts[t].number)];
    const auto n = static_cast<Index>(own.tokens.size());
    for (Index layer = 0; layer < layers(); ++layer) {
      const float* weights = own.weights[at(layer)];
      if (shuffle_) {
        mixed.assign(weights, weights + heads(layer) * n * n);
        for (Index row = 0; row < heads(layer) * n; ++row)
          shuffle_entries(mixed.data() + row * n, causal_ ? row % n + 1 : n,
                          seed_ + static_cast<std::uint64_t>(
                                      (texts[t].number * layers() + layer) * 1'000'003 + row * 101));
        weights = mixed.data();
      }
      LayerMaps maps;
      maps.heads = heads(layer), maps.tokens = maps.keys = n, maps.weights = weights;
      if (values && !own.value_norms.empty())
        for (Index h = 0; h < maps.heads; ++h) {
          const float* norms = own.value_norms[at(layer)] + h * n;
          maps.value_norm.emplace_back(norms, norms + n);
        }
      look(layer, static_cast<Index>(t), std::span(&maps, 1));
    }
  }
}

void ArraySubject::run_parts(const SurveyTokens&, BlockParts, const RowLook&) {
  throw Error(ErrorKind::unsupported, text(kOp, ": arrays have no blocks to leave parts out of"));
}

HeadMatrices ArraySubject::matrices(Index, Index) const { return {}; }

}  // namespace headwise
