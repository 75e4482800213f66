// Cutting heads of a decoder: a trial that ranks them, and the smaller model of equally wide layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/cut/cut.h"
#include "headwise/lab/decoder/lab_decoder.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The loss is that of the next token. Every trial reads the weights anew, so it suits small models.
class DecoderTrial : public CutTrial {
 public:
  DecoderTrial(const LabDecoder& model, std::span<const std::string> texts, Index most, Context& ctx);
  const std::vector<Index>& heads() const override { return heads_; }
  double whole_loss() override { return loss_without(HeadPlan(heads_)); }
  double loss_without(const HeadPlan& plan) override;
  /// Refused: there is no gradient here.
  std::vector<std::vector<double>> michel(MichelSum sum, bool by_layer) override;

 private:
  const LabDecoder& model_;
  Context& ctx_;
  std::vector<Index> heads_;
  std::vector<LabDecoder::Text> texts_;
};

/// Where the heads of a layer come from, by slot; -1: a slot that gives nothing.
struct DecoderSlots {
  Index group = 1;                                      // query heads of a key/value head
  std::vector<std::vector<Index>> query = {}, kv = {};  // [layers][slots]
};
/// A key/value head goes with the last query head that reads it. config.json says one number of heads for all
/// layers and one for all groups: the pair that needs fewest weights. Slots beyond a layer's heads stay
/// empty, and a key/value head of a larger group stands twice.
DecoderSlots slots_of(const DecoderConfig& config, const HeadPlan& plan);

/// The decoder without the heads of the plan: it answers as the whole one does with their gates at 0.
EditedDecoder cut_heads(const LabDecoder& model, const HeadPlan& plan);

}  // namespace headwise
#pragma GCC visibility pop
