#include "headwise/intent/recognizer/chunks.h"

namespace headwise {
namespace {

ConstView view_of(const std::vector<Index>& list) {
  return ConstView::packed(list.data(), DType::i64, {static_cast<Index>(list.size())});
}

}  // namespace

ConstView TextBatch::id_view() const {
  return ConstView::packed(ids.data(), DType::i32, {static_cast<Index>(ids.size())});
}
Sequences TextBatch::sequences() const { return {.offsets = view_of(chunks)}; }
PooledRows TextBatch::pooled() const { return {.rows = view_of(rows), .offsets = view_of(texts)}; }

void TextBatch::add(const Encoding& e, const ChunkOptions& o) {
  const Index room = o.tokens - 2, total = static_cast<Index>(e.ids.size()) - 2;
  require(o.overlap >= 0 && room > o.overlap, ErrorKind::bad_argument, "chunks", "chunks of ", o.tokens,
          " tokens, two of them added, cannot overlap by ", o.overlap,
          "; make them longer or the overlap smaller");
  require(total >= 0, ErrorKind::bad_argument, "chunks", "an encoding of ", e.ids.size(),
          " tokens has no [CLS] and [SEP]; encode with around");
  const auto put = [&](Index i) {
    ids.push_back(e.ids[static_cast<std::size_t>(i)]);
    spans.push_back(e.spans[static_cast<std::size_t>(i)]);
  };
  const Index step = room - o.overlap;
  // Neighbours share tokens [begin + step, begin + room): the first half speaks in the left one.
  for (Index begin = 0;; begin += step) {
    const bool last = begin + room >= total;
    const Index end = last ? total : begin + room, start = static_cast<Index>(ids.size());
    put(0);
    for (Index i = begin; i < end; ++i) put(1 + i);
    put(total + 1);
    const Index speaks = begin == 0 ? 0 : begin + o.overlap / 2,
                until = last ? end : begin + step + o.overlap / 2;
    if (begin == 0 || o.first_only) rows.push_back(start);
    if (!o.first_only) {
      for (Index i = speaks; i < until; ++i) rows.push_back(start + 1 + i - begin);
      if (last) rows.push_back(start + 1 + end - begin);
    }
    chunks.push_back(static_cast<Index>(ids.size()));
    if (last) break;
  }
  texts.push_back(static_cast<Index>(rows.size()));
  first_chunk.push_back(static_cast<Index>(chunks.size()) - 1);
  cut += e.cut;
}

}  // namespace headwise
