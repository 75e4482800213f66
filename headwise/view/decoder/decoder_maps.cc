#include "headwise/view/decoder/decoder_maps.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "headwise/analysis/report/shown_text.h"
#include "headwise/decoder/generator.h"
#include "headwise/view/decoder/decoder_circuits.h"
#include "headwise/view/decoder/seen_heads.h"

namespace headwise {
namespace {

constexpr const char* kOp = "view";
constexpr Index kTokenChars = 60, kLikely = 5, kChunk = 256, kCacheBytes = Index{1} << 30;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A token as it is read: special ones have no bytes and get a name.
std::string name_of_token(const Tokenizer& t, TokenId before, TokenId id) {
  const std::string_view bytes = t.bytes_after(before, id);
  if (!bytes.empty()) return std::string(bytes);
  if (id == t.begin_token()) return "<begin>";
  const auto& ends = t.end_tokens();
  return std::find(ends.begin(), ends.end(), id) != ends.end() ? "<end>" : text("<", id, ">");
}

/// Pieces that begin with a letter, a digit or bytes of one go on with the word before them.
bool goes_on(std::string_view piece) {
  const auto c = static_cast<unsigned char>(piece.empty() ? ' ' : piece[0]);
  return c >= 0x80 || std::isalnum(c) != 0;
}

ViewTokens tokens_of(const Tokenizer& t, std::span<const TokenId> ids, std::vector<std::string>& written) {
  ViewTokens tokens;
  bool open = false;  // the token before may be gone on with
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const TokenId before = i > 0 ? ids[i - 1] : -1;
    const bool special = t.bytes(ids[i]).empty();
    written.push_back(name_of_token(t, before, ids[i]));
    std::string piece = written.back();
    const bool inside = open && !special && goes_on(piece);
    if (special) tokens.special.push_back(tokens.count());
    tokens.words.push_back(tokens.words.empty() ? 0 : tokens.words.back() + (inside ? 0 : 1));
    const std::size_t begin = piece.find_first_not_of(' ');
    const bool blank = begin == std::string::npos;
    blank ? piece.assign("␣") : piece.erase(0, begin);
    open = !special && (blank || goes_on(piece));
    tokens.texts.push_back(shown(piece, kTokenChars));
  }
  return tokens;
}

/// A model with what it needs to run; the source stays open for its weights.
struct Host {
  Host(const std::string& path, Context& c)
      : ctx(c),
        source(open_decoder(path)),
        model(*source, {}, c),
        cache(model.kv_shape(), {.bytes = kCacheBytes}) {
    require(source->tokenizer() != nullptr, ErrorKind::bad_argument, kOp, path,
            ": no tokenizer lies beside the model; put its tokenizer.bin or tokenizer.json there");
  }
  const Tokenizer& tokenizer() const { return *source->tokenizer(); }
  Context& ctx;
  std::unique_ptr<DecoderSource> source;
  Decoder model;
  KvCache cache;
};

/// Writes behind `ids` and keeps what the probes saw.
Generation write_on(Host& host, std::vector<TokenId>& ids, const DecoderViewOptions& o) {
  Generation g;
  g.prompt = static_cast<Index>(ids.size());
  Generator generator(host.model, &host.tokenizer(), host.cache);
  GenerateRequest request;
  request.prompt = ids, request.sampling = o.sampling;
  request.max_tokens = std::min(o.generate, host.model.config().positions - g.prompt);
  require(request.max_tokens > 0, ErrorKind::bad_argument, kOp, "the text takes all of the model's ",
          host.model.config().positions, " tokens, so nothing can be written behind it; give a shorter text");
  request.logprobs = kLikely, request.watch = true;
  generator.add(request);
  while (generator.step(host.ctx))
    for (const GenerateEvent& e : generator.events()) {
      require(e.finish != Finish::error, ErrorKind::bad_argument, kOp, e.error);
      for (std::size_t t = 0; t < e.tokens.size(); ++t) {
        GeneratedStep step{.probability = std::exp(e.drawn[t].logprob)};
        for (const TokenLogprob& l : e.drawn[t].top)
          step.likely.emplace_back(name_of_token(host.tokenizer(), ids.back(), l.token), std::exp(l.logprob));
        g.steps.push_back(std::move(step));
        const HeadStats& h = e.heads[t];
        g.entropy.insert(g.entropy.end(), h.entropy.begin(), h.entropy.end());
        g.largest.insert(g.largest.end(), h.top_weight.begin(), h.top_weight.end());
        g.first.insert(g.first.end(), h.first_mass.begin(), h.first_mass.end());
        ids.push_back(e.tokens[t]);
      }
    }
  return g;
}

/// Every row once more, with its queries, keys and values.
void read_all(Host& host, std::span<const TokenId> ids, SeenHeads& seen) {
  DecoderStep step;
  step.look = [&](Index layer, const AnyView& q, const AnyView& k, const AnyView&) { seen.add(layer, q, k); };
  const SequenceId id = host.cache.open("view");
  for (Index done = 0; done < static_cast<Index>(ids.size()); done += kChunk) {
    const auto part = ids.subspan(at(done), at(std::min<Index>(kChunk, std::ssize(ids) - done)));
    require(host.cache.reserve(id, std::ssize(part)), ErrorKind::bad_argument, kOp, "keys and values of ",
            ids.size(), " tokens take more than ", kCacheBytes, " bytes; give a shorter text");
    std::vector<DecoderRow> rows;
    for (const TokenId t : part) rows.push_back({id, t, false});
    host.model.forward(rows, host.cache, step, host.ctx);
    host.cache.commit(id, part);
  }
  host.cache.close(id);
}

}  // namespace

bool is_decoder(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.ends_with(".gguf") || path.ends_with(".bin")) return true;
  const fs::path folder(path);
  return fs::exists(folder / "config.json") && !fs::exists(folder / "vocab.txt") &&
         !fs::exists(folder / "labels.txt") && !fs::exists(folder / "bpe.txt");
}

AttentionMaps maps_of_decoder(const std::string& path, const std::string& words, const DecoderViewOptions& o,
                              Session& session) {
  require(!words.empty(), ErrorKind::bad_argument, kOp, "a model needs a text to look at; give one");
  Host host(path, session.ctx);
  const DecoderConfig& c = host.model.config();
  std::vector<TokenId> ids = host.tokenizer().encode(words);
  require(!ids.empty() && std::ssize(ids) <= c.positions, ErrorKind::bad_argument, kOp, "the text has ",
          ids.size(), " tokens; the model takes 1 to ", c.positions);
  AttentionMaps m;
  if (o.generate > 0) m.generation = write_on(host, ids, o);
  std::vector<std::string> written;
  m.queries = tokens_of(host.tokenizer(), ids, written);
  m.keys = m.queries;
  if (m.generation) m.generation->written = std::move(written);
  auto seen = std::make_shared<SeenHeads>(c, static_cast<Index>(ids.size()));
  read_all(host, ids, *seen);
  m.heads.assign(at(c.layers), c.heads);
  m.row = [seen](Index layer, Index head, Index query, std::span<float> row) {
    seen->row(layer, head, query, row);
  };
  m.head_dim = c.head_dim;
  if (!o.circuit.empty()) {
    const auto name = [&](TokenId id) { return shown(name_of_token(host.tokenizer(), id, id), kTokenChars); };
    m.circuits = circuits_of(*host.source, {ids, parse_heads(o.circuit, c), host.tokenizer().size(), name},
                             session.ctx);
  }
  for (Index l = 0; l < c.layers; ++l) m.q.push_back(seen->queries(l)), m.k.push_back(seen->keys(l));
  return m;
}

}  // namespace headwise
