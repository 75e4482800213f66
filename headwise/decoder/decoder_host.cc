#include "headwise/decoder/decoder_host.h"

#include <algorithm>

#include "headwise/decoder/files/source.h"

namespace headwise {

std::optional<DType> weights_dtype_named(std::string_view name, std::string_view value) {
  if (value == "stored") return {};
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    if (value == name_of(t)) return t;
  throw Error(ErrorKind::bad_argument, text(name, " is stored, f32, bf16 or f16, not \"", value, "\""));
}

DType kv_dtype_named(std::string_view name, std::string_view value) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3})
    if (value == name_of(t)) return t;
  throw Error(ErrorKind::bad_argument, text(name, " is f32, bf16, f16, i8 or e4m3, not \"", value, "\""));
}

bool rounded_rows_named(std::string_view name, std::string_view value) {
  if (value == "exact" || value == "i8") return value == "i8";
  throw Error(ErrorKind::bad_argument, text(name, " is exact or i8, not \"", value, "\""));
}

DecoderHost::DecoderHost(const std::string& path, const DecoderHostOptions& options, Context& ctx)
    : DecoderHost(open_decoder(path), options, ctx) {}

DecoderHost::DecoderHost(std::unique_ptr<DecoderSource> source, const DecoderHostOptions& options,
                         Context& ctx)
    : tokenizer_(source->share_tokenizer()),
      chat_template_(source->chat_template()),
      model_(*source, options.model, ctx),
      cache_(model_.kv_shape(),
             {.bytes = options.kv_bytes, .dtype = options.kv_dtype, .share = model_.key_share()}),
      generator_(model_, tokenizer_.get(), cache_, options.generator) {}

const Tokenizer& DecoderHost::need_tokenizer(std::string_view op) const {
  require(tokenizer_ != nullptr, ErrorKind::bad_argument, op,
          "no tokenizer lies beside the model; put its tokenizer.bin or tokenizer.json there, or give ids");
  return *tokenizer_;
}

void DecoderHost::require_alone() const {
  require(!lead_, ErrorKind::unsupported, "decoder",
          "statistics of heads are not there over ranks yet; leave them out, or serve on one rank");
}

RequestId DecoderHost::add(GenerateRequest request) {
  if (request.watch) require_alone();
  if (!lead_) {
    const RequestId id = generator_.add(std::move(request));
    inbox_[id];
    return id;
  }
  const RequestId id = generator_.add(request);
  inbox_[id];
  turn_.added.push_back(std::move(request));
  return id;
}

void DecoderHost::follow(const DecoderTurn& turn, Context& ctx) {
  for (const GenerateRequest& r : turn.added) generator_.add(r);
  for (const RequestId id : turn.dropped) generator_.cancel(id);
  generator_.step(ctx);
}

std::vector<GenerateEvent> DecoderHost::next(std::span<const RequestId> ids, Context& ctx) {
  std::vector<GenerateEvent> mine;
  const auto fetch = [&] {
    for (const RequestId id : ids) {
      const auto found = inbox_.find(id);
      if (found == inbox_.end()) continue;
      bool ended = false;
      for (GenerateEvent& e : found->second) {
        ended = ended || e.finish != Finish::none;
        mine.push_back(std::move(e));
      }
      found->second.clear();
      if (ended) inbox_.erase(found);
    }
  };
  fetch();
  if (!mine.empty()) return mine;
  if (lead_) {
    // Nothing to do and nothing to say: the others need not wake.
    const DecoderTurn turn = std::exchange(turn_, {});
    if (turn.none() && generator_.running() + generator_.waiting() == 0) return mine;
    lead_(turn, [&] { generator_.step(ctx); });
  } else {
    generator_.step(ctx);
  }
  for (const GenerateEvent& e : generator_.events())
    if (const auto found = inbox_.find(e.id); found != inbox_.end()) found->second.push_back(e);
  fetch();
  return mine;
}

void DecoderHost::drop(std::span<const RequestId> ids) {
  for (const RequestId id : ids) {
    generator_.cancel(id);
    if (lead_) turn_.dropped.push_back(id);
    inbox_.erase(id);
  }
}

DecoderRows DecoderHost::rows(std::span<const TokenId> ids, const Asked& asked, Context& ctx) {
  constexpr std::string_view kOp = "decoder";
  constexpr Index kChunk = 256;
  require_alone();  // the others' caches would not change as this one does
  const auto n = static_cast<Index>(ids.size());
  const DecoderConfig& c = model_.config();
  require(n <= c.positions, ErrorKind::bad_argument, kOp, "got ", n, " tokens; the model has ", c.positions,
          " positions");
  for (const TokenId id : ids)
    require(id >= 0 && id < c.vocabulary, ErrorKind::bad_argument, kOp, "got token ", id,
            "; ids run from 0 to ", c.vocabulary - 1);
  DecoderRows out;
  DecoderStep step;
  step.watch = asked.heads;
  struct Open {
    KvCache& cache;
    SequenceId id;
    ~Open() { cache.close(id); }
  } text{cache_, cache_.open("rows")};
  for (Index done = 0; done < n; done += kChunk) {
    const std::span<const TokenId> part =
        ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(std::min(kChunk, n - done)));
    require(cache_.reserve(text.id, std::ssize(part)), ErrorKind::bad_argument, kOp, "a text of ", n,
            " tokens finds no room among the cache's ", cache_.pages(), " pages; give it more bytes");
    std::vector<DecoderRow> rows;
    for (const TokenId id : part) rows.push_back({text.id, id, true, asked.memory});
    model_.forward(rows, cache_, step, ctx);
    cache_.commit(text.id, part);
    for (Index i = 0; asked.logits && i < std::ssize(part); ++i)
      out.logits.insert(out.logits.end(), step.logits(i).begin(), step.logits(i).end());
    if (asked.heads) out.heads.insert(out.heads.end(), step.heads().begin(), step.heads().end());
  }
  return out;
}

}  // namespace headwise
