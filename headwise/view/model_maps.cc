#include "headwise/view/model_maps.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "headwise/analysis/explain.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/translation/word_split.h"

namespace headwise {
namespace {

constexpr Index kTokenChars = 60;

/// One token more; a piece belongs to the word of the piece before it unless a space or another script parts
/// them, which is where its bytes do not go on from there.
void add_token(ViewTokens& to, std::string_view text, TextSpan span, const std::string& piece, bool inside) {
  const bool special = span.begin == span.end;
  if (special) to.special.push_back(to.count());
  const Index word = to.words.empty() ? 0 : to.words.back() + (inside ? 0 : 1);
  to.words.push_back(word);
  to.texts.push_back(special ? shown(piece, kTokenChars) : shown(text, span, nullptr, kTokenChars));
}

/// Keeps the taps of the first sequence alive inside the maps.
void take_taps(AttentionMaps& m, std::vector<Tap> taps) {
  std::erase_if(taps, [](const Tap& t) { return t.sequence != 0; });
  std::stable_sort(taps.begin(), taps.end(), [](const Tap& a, const Tap& b) { return a.block < b.block; });
  for (const Tap& t : taps) m.heads.push_back(t.heads);
  const auto kept = std::make_shared<std::vector<Tap>>(std::move(taps));
  m.row = [kept](Index layer, Index head, Index query, std::span<float> row) {
    const Tap& t = (*kept)[static_cast<std::size_t>(layer)];
    for (Index j = 0; j < t.kv_tokens; ++j) row[static_cast<std::size_t>(j)] = t.at(head, query, j);
  };
}

/// Tokens of one text in the encoder's words, with or without what stands around it.
void add_text(const TextEncoder& encoder, const std::string& text, const Encoding& e, ViewTokens& to) {
  const WordPiece& pieces = encoder.tokenizer();
  for (std::size_t t = 0; t < e.ids.size(); ++t) {
    const std::string piece(pieces.vocabulary().piece(e.ids[t]));
    add_token(to, text, e.spans[t], piece, piece.starts_with(pieces.options().inside));
  }
}

/// Pieces of a byte-pair encoding under the numbers of their words, and the end.
void add_pieces(const Bpe& bpe, std::span<const std::int32_t> tokens, const std::string& text,
                ViewTokens& to) {
  const std::vector<TextSpan> words = split_sentence(text);
  Index begin = 0;
  for (std::size_t t = 0; const WordRange& r : words_of_tokens(bpe, tokens, words)) {
    const Index end = begin + static_cast<Index>(bpe.bytes(tokens[t++]).size());
    to.texts.push_back(shown(text, {begin, end}, nullptr, kTokenChars));
    to.words.push_back(r.first);
    begin = end;
  }
  to.special.push_back(to.count());
  to.texts.emplace_back("</s>"), to.words.push_back(static_cast<Index>(words.size()));
}

}  // namespace

AttentionMaps maps_of(const Recognizer& r, const std::string& text, Session& session) {
  const Explanation e = explain_text(r, text, session, {.weights = true});
  require(!e.taps.empty(), ErrorKind::bad_argument, "view",
          "this recogniser's layers give no weights to look at");
  AttentionMaps m;
  const Index tokens = min_of(e.taps[0].q_tokens, static_cast<Index>(e.tokens.size()));
  Index word = -2;
  for (Index t = 0; t < tokens; ++t) {
    const ExplainedToken& token = e.tokens[static_cast<std::size_t>(t)];
    add_token(m.queries, text, token.span, token.piece, token.word >= 0 && token.word == word);
    word = token.word;
  }
  m.keys = m.queries;
  take_taps(m, e.taps);
  return m;
}

AttentionMaps maps_of(const TextEncoder& encoder, const std::string& text, const std::string& pair,
                      Session& session) {
  const Index most = encoder.max_tokens();
  Encoding first = encoder.tokenizer().encode(text, {.around = true, .most = most});
  AttentionMaps m;
  add_text(encoder, text, first, m.queries);
  std::vector<TokenId> ids = first.ids, types(ids.size(), 0);
  if (!pair.empty()) {
    require(static_cast<Index>(ids.size()) + 2 < most, ErrorKind::bad_argument, "view",
            "the first text takes ", ids.size(), " of ", most,
            " tokens, so the second has no room; give shorter texts");
    Encoding second =
        encoder.tokenizer().encode(pair, {.around = true, .most = most - static_cast<Index>(ids.size()) + 1});
    second.ids.erase(second.ids.begin()), second.spans.erase(second.spans.begin());
    add_text(encoder, pair, second, m.queries);
    ids.insert(ids.end(), second.ids.begin(), second.ids.end());
    types.resize(ids.size(), 1);
  }
  m.keys = m.queries;
  Taps taps;
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.taps = &taps;
  const auto tokens = static_cast<Index>(ids.size());
  TransformerInput input{.ids = AnyView::packed(ids.data(), DType::i32, {tokens}),
                         .sequences = {.batch = 1, .tokens = tokens}};
  if (!pair.empty()) input.types = AnyView::packed(types.data(), DType::i32, {tokens});
  encoder.model().forward(input, call, nullptr);
  take_taps(m, std::move(taps.all));
  return m;
}

AttentionMaps maps_of(const Translator& model, const std::string& text, const std::string& pair,
                      Session& session) {
  std::string written = pair;
  if (pair.empty()) {
    const std::vector<std::vector<std::int32_t>> source = {model.bpe().encode(text)};
    written = model.bpe().decode(model.translate(source, session)[0]);
  }
  const PairTokens tokens = model.encode(text, written);
  const PairTokens* asked[] = {&tokens};
  AttentionMaps m;
  m.name = "cross";
  add_pieces(model.bpe(), tokens.source, text, m.keys);
  add_pieces(model.bpe(), tokens.target, written, m.queries);
  take_taps(m, model.cross_weights(asked, session));
  return m;
}

AttentionMaps maps_of_model(const std::string& path, const ModelText& what, Session& session) {
  require(!what.text.empty(), ErrorKind::bad_argument, "view", "a model needs a text to look at; give one");
  if (is_decoder(path)) {
    require(what.pair.empty(), ErrorKind::bad_argument, "view",
            "a pair of texts is for pretrained encoders; a decoder reads one");
    return maps_of_decoder(path, what.text, what.decoder, session);
  }
  require(what.decoder.generate == 0 && what.decoder.circuit.empty(), ErrorKind::bad_argument, "view", path,
          " is no decoder, so it writes nothing and has no circuits; leave out generate and circuit");
  const std::filesystem::path folder(path);
  if (std::filesystem::exists(folder / "bpe.txt"))
    return maps_of(Translator::load(path), what.text, what.pair, session);
  if (std::filesystem::exists(folder / "labels.txt")) {
    require(what.pair.empty(), ErrorKind::bad_argument, "view",
            "a pair of texts is for pretrained encoders; a recogniser reads one");
    return maps_of(Recognizer::load(path), what.text, session);
  }
  require(std::filesystem::exists(folder / "vocab.txt"), ErrorKind::bad_argument, "view", path,
          " is neither a recogniser (labels.txt), a BERT-style encoder (vocab.txt), a translator (bpe.txt) "
          "nor a decoder "
          "(config.json, .gguf, .bin)");
  return maps_of(TextEncoder(path), what.text, what.pair, session);
}

void add_other(std::vector<AttentionMaps>& all, const std::string& path, const std::string& other,
               const ModelText& what, Session& session) {
  const auto name = [](const std::string& p) {
    const std::filesystem::path file(p.ends_with('/') ? p.substr(0, p.size() - 1) : p);
    return file.filename().string();
  };
  ModelText read = what;
  read.decoder.generate = 0, read.decoder.circuit.clear();
  if (all[0].generation) {
    const std::vector<std::string>& written = all[0].generation->written;
    for (std::size_t t = static_cast<std::size_t>(all[0].generation->prompt); t < written.size(); ++t)
      read.text += written[t];
  }
  all.push_back(maps_of_model(other, read, session));
  all[0].name = name(path), all[1].name = name(other);
  if (all[0].name == all[1].name) all[0].name = path, all[1].name = other;
}

}  // namespace headwise
