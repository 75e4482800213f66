#include "headwise/intent/training/scope/cut_calibration.h"

#include <algorithm>

namespace headwise {

CutOptions calibrate_cuts(const Recognizer& model, const Corpus& dev, std::span<const TextReading> readings) {
  const std::vector<std::string>& names = model.config().labels;
  std::vector<std::vector<Index>> wanted;
  for (const Utterance& row : dev.rows) {
    wanted.emplace_back();
    for (const std::string& label : row.labels)
      wanted.back().push_back(std::find(names.begin(), names.end(), label) - names.begin());
    std::sort(wanted.back().begin(), wanted.back().end());
  }
  CutOptions best = model.config().cuts;
  Index most = -1;
  for (const double shift : {0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0})
    for (const double weight : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 0.7, 0.3}) {
      Index right = 0;
      for (std::size_t i = 0; i < readings.size(); ++i) {
        std::vector<Index> given;
        for (const ChosenSpan& c : choose_cuts(readings[i].cuts, shift, weight)) given.push_back(c.label);
        std::sort(given.begin(), given.end());
        right += given == wanted[i];
      }
      if (right > most) most = right, best.shift = shift, best.weight = weight;
    }
  return best;
}

}  // namespace headwise
