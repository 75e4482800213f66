// A recogniser on the ranks of a command, whole or cut, once all agree on weights and data.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <utility>

#include "headwise/cli/ranks/ranks.h"
#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/recognizer/cut_recognizer.h"
#include "headwise/train/checkpoints/checkpoint.h"
#include "headwise/train/checkpoints/crc32c.h"

namespace headwise::cli {

inline std::uint32_t texts_crc(std::span<const std::string> texts) {
  Crc32c crc;
  for (const std::string& one : texts) crc.add(one), crc.add("\n");
  return crc.value();
}
inline std::uint32_t corpus_crc(const Corpus& corpus) {
  Crc32c crc;
  for (const Utterance& row : corpus.rows) {
    crc.add(row.text);
    for (const std::string& label : row.labels) crc.add("\t" + label);
    crc.add("\n");
  }
  return crc.value();
}

inline Recognizer load_on_ranks(const std::string& folder, std::uint32_t data, const Ranks& ranks,
                                const Context& ctx) {
  Recognizer whole = Recognizer::load(folder);
  if (ranks.world().ranks() > 1) {
    Crc32c weights;
    for (const Param& p : whole.params().all()) {
      weights.add(p.name);
      weights.add(std::span(static_cast<const std::byte*>(p.value.data), p.bytes()));
    }
    ranks.agree({{"heads", whole.config().encoder.heads},
                 {"weights with CRC-32C", text(weights.value())},
                 {"data with CRC-32C", text(data)},
                 {"numerics", numerics_id(ctx)}});
  }
  return ranks.cuts() ? cut_over(whole, ranks.teams()) : std::move(whole);
}

}  // namespace headwise::cli
