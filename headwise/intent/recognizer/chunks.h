// TextBatch: texts as an encoder reads them: whole or in overlapping chunks, and the rows that speak for
// each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/intent/recognizer/pooling.h"
#include "headwise/text/wordpiece.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ChunkOptions {
  Index tokens = 512;       // of one chunk, [CLS] and [SEP] counted
  Index overlap = 64;       // tokens two neighbours share
  bool first_only = false;  // only the [CLS] of each chunk speaks for the text
};

/// A text that fits one chunk is that chunk. Of a longer one every token speaks once, in the chunk where it
/// stands farther from an edge; of the added tokens, the [CLS] of the first chunk and the [SEP] of the last.
struct TextBatch {
  std::vector<TokenId> ids;              // chunk after chunk
  std::vector<TextSpan> spans;           // of each id in its own text
  std::vector<Index> chunks = {0};       // [chunks + 1]: where each begins in ids
  std::vector<Index> rows;               // that speak, text by text
  std::vector<Index> texts = {0};        // [texts + 1]: where each text begins in rows
  std::vector<Index> first_chunk = {0};  // [texts + 1]: where each text begins in chunks
  Index cut = 0;                         // texts that had more tokens than are read

  Index count() const { return static_cast<Index>(texts.size()) - 1; }
  ConstView id_view() const;
  Sequences sequences() const;
  PooledRows pooled() const;
  /// `encoding` has [CLS] and [SEP] around it.
  void add(const Encoding& encoding, const ChunkOptions& options);
};

}  // namespace headwise
#pragma GCC visibility pop
