#include "headwise/analysis/text_loss.h"

#include <algorithm>
#include <cmath>

namespace headwise {

double text_loss(const Recognizer& r, const AnyView& logits, Index text, const std::vector<Index>& labels,
                 const AnyView& slope) {
  const Index count = logits.size[1];
  const auto x = [&](Index l) { return load_double(logits.data, logits.dtype, text * count + l); };
  const auto put = [&](Index l, double g) {
    if (slope.given()) store_double(slope.data, slope.dtype, text * count + l, g);
  };
  // Read as one span, a text without one label has the class that is no label.
  const bool other = r.config().cuts.on && labels.size() != 1;
  const auto is_true = [&](Index l) {
    return other ? l + 1 == count : std::find(labels.begin(), labels.end(), l) != labels.end();
  };
  double loss = 0;
  if (!r.config().one_class()) {
    // -ln sigmoid(x) or -ln(1 - sigmoid(x)), in the form that never overflows
    for (Index l = 0; l < count; ++l) {
      const double sign = is_true(l) ? 1 : -1, z = sign * x(l);
      loss += std::max(-z, 0.0) + std::log1p(std::exp(-std::abs(z)));
      put(l, -sign / (1 + std::exp(z)));
    }
    return loss;
  }
  double most = x(0), sum = 0;
  for (Index l = 1; l < count; ++l) most = std::max(most, x(l));
  for (Index l = 0; l < count; ++l) sum += std::exp(x(l) - most);
  for (Index l = 0; l < count; ++l) put(l, std::exp(x(l) - most) / sum - (is_true(l) ? 1 : 0));
  return std::log(sum) + most - x(other ? count - 1 : labels[0]);
}

bool label_numbers(const Recognizer& r, const Utterance& u, std::vector<Index>& labels) {
  const std::vector<std::string>& known = r.config().labels;
  labels.clear();
  for (const std::string& l : u.labels) {
    const auto at = std::find(known.begin(), known.end(), l);
    if (at != known.end()) labels.push_back(at - known.begin());
  }
  return labels.size() == u.labels.size() && (!labels.empty() || r.config().multi_label);
}

}  // namespace headwise
