// convert: heads with keys and values of their own made to share them: MHA to GQA and MQA.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/lab/matrix/merge.h"
#include "headwise/lab/model/lab_model.h"

#pragma GCC visibility push(default)
namespace headwise {

struct Converted {
  EditedModel edited = {};
  std::vector<LayerMerge> layers = {};
};

/// Inner products of every layer's key and value heads over the texts.
struct KvGrams {
  std::vector<HeadGram> keys = {}, values = {};
};
KvGrams kv_grams(const LabModel& model, std::span<const std::string> texts, Session& session);

/// Every layer with kv_heads key/value heads. As many as it has: the same function, bit for bit. Without
/// texts the sums of squares are those of the weights alone.
Converted share_kv(const LabModel& model, Index kv_heads, MergeBy by, const KvGrams& grams);

/// How far the answers of two models are apart on some texts.
struct AnswerChange {
  Index texts = 0;
  double kl = 0;      // recognisers: mean KL(before || after), nats
  double same = 0;    // recognisers: share of texts with the same labels
  double cosine = 0;  // encoders: mean cosine of the vectors
};
AnswerChange change_of(const LabModel& before, const LabModel& after, std::span<const std::string> texts,
                       Session& session);

}  // namespace headwise
#pragma GCC visibility pop
