// A small recogniser of any heads with weights off their start, and the folder it is saved in.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/lab/model/lab_model.h"
#include "tests/intent/support.h"

namespace headwise::test {

inline Vocabulary lab_vocabulary() {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (const char* word :
       {"my", "card", "is", "lost", "the", "loan", "rate", "pay", "fee", "for", "##s", "."})
    pieces.emplace_back(word);
  return Vocabulary(pieces);
}

inline const std::vector<std::string>& lab_texts() {
  static const std::vector<std::string> texts = {"my card is lost", "the loan rate",
                                                 "pay the fee for my loan .", "cards",
                                                 "lost lost rate . my fee for the card is lost"};
  return texts;
}

inline Corpus lab_corpus() {
  Corpus c{.name = "lab", .rows = {}};
  const char* labels[] = {"card", "loan", "fee", "card", "card"};
  for (std::size_t i = 0; i < lab_texts().size(); ++i) c.rows.push_back({lab_texts()[i], {labels[i]}, {}, 0});
  return c;
}

/// Adds noise to every parameter, so that no head is zero and no matrix the identity.
inline void stir(ParamSet& params, double size) {
  std::uint64_t seed = 11;
  for (Param& p : params.all()) {
    ++seed;
    for (Index i = 0; i < p.value.count(); ++i)
      store_double(p.value.data, p.value.dtype, i,
                   load_double(p.value.data, p.value.dtype, i) + size * normal_at(seed, i));
  }
}

inline Recognizer lab_recognizer(const std::string& heads, Positions positions = Positions::learned) {
  RecognizerConfig c;
  c.encoder.model_dim = 12, c.encoder.feed_dim = 16, c.encoder.max_tokens = 32, c.encoder.depth = 2;
  c.encoder.heads = heads, c.encoder.positions = positions;
  c.labels = {"card", "loan", "fee"};
  c.ngrams.buckets = 0;
  c.chunk_tokens = 32, c.chunk_overlap = 8;
  Recognizer model(c, lab_vocabulary(), 3);
  stir(model.params(), 0.4);
  return model;
}

}  // namespace headwise::test
