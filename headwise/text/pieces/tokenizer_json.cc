#include "headwise/text/pieces/tokenizer_json.h"

#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/byte_bpe.h"
#include "headwise/text/pieces/char_bpe.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "tokenizer";
constexpr Index kMostTokens = 2'000'000, kMostBytes = Index{256} << 20, kMostPiece = 4096;
constexpr std::string_view kSpaceSign = "\xe2\x96\x81";  // U+2581

class JsonTokenizer {
 public:
  JsonTokenizer(const JsonObject& json, std::string where, bool bare)
      : json_(json), where_(std::move(where)), bare_(bare) {}

  /// Whether its pieces are characters and not bytes: something else than ByteLevel cuts the text.
  bool of_characters() const {
    const JsonObject cut = json_.object("pre_tokenizer");
    const std::string kind = cut.word("type", "none");
    return json_.object("model").boolean("byte_fallback", false) || kind == "Metaspace" ||
           (kind == "none" && json_.has("normalizer"));
  }

  CharBpeParts char_parts(Index rows) {
    const JsonObject model = json_.object("model");
    read_common(model, rows);
    CharBpeParts p;
    for (const ByteBpeParts::AddedToken& a : parts_.added) p.added.push_back({a.id, a.text, a.special});
    p.pieces = std::move(parts_.pieces), p.merges = std::move(parts_.merges);
    p.whole_words = parts_.whole_words, p.begin = parts_.begin, p.add_begin = parts_.add_begin;
    p.bytes = model.boolean("byte_fallback", false), p.fuse_unknown = model.boolean("fuse_unk", false);
    const std::string unknown = model.word("unk_token", std::string());
    for (std::size_t i = 0; !unknown.empty() && i < p.pieces.size(); ++i)
      if (p.pieces[i] == unknown) p.unknown = static_cast<TokenId>(i);
    read_spaces(p);
    return p;
  }

  ByteBpeParts parts(Index rows) {
    const JsonObject model = json_.object("model");
    read_common(model, rows);
    read_pattern();
    return std::move(parts_);
  }

 private:
  void read_common(const JsonObject& model, Index rows) {
    if (model.word("type", "BPE") != "BPE") model.refuse("type", "BPE is read");
    if (model.number("dropout", 0, 1, 0.0) != 0) model.refuse("dropout", "ids must not depend on chance");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!model.word(key, std::string()).empty()) model.refuse(key, "pieces have neither prefix nor suffix");
    parts_.whole_words = model.boolean("ignore_merges", false);
    read_pieces(model, rows > 0 ? rows : kMostTokens);
    read_added(rows > 0 ? rows : kMostTokens);
    read_merges(model);
    read_template();
  }

  /// SentencePiece's ways with spaces: a normalizer that writes U+2581, Metaspace, or both halves of it.
  void read_spaces(CharBpeParts& p) const {
    const JsonObject normalizer = json_.object("normalizer"), cut = json_.object("pre_tokenizer");
    std::vector<JsonObject> steps = normalizer.objects("normalizers");
    if (normalizer.word("type", "none") != "none" && normalizer.word("type") != "Sequence")
      steps.push_back(normalizer);
    bool writes = false;
    for (const JsonObject& step : steps) {
      const std::string kind = step.word("type");
      const bool plain = kind == "Replace" && step.object("pattern").word("String", std::string()) == " " &&
                         step.word("content", std::string()) == kSpaceSign;
      if (kind == "Prepend" && step.word("prepend") == kSpaceSign && !writes)
        p.space = {SpaceRule::Where::every, false};
      else if (plain)
        writes = true;
      else
        step.refuse("type", "Prepend of \u2581 and Replace of spaces by it are read");
    }
    const std::string kind = cut.word("type", "none");
    if (kind == "Metaspace") {
      if (!steps.empty()) normalizer.refuse("type", "with Metaspace none is read");
      if (cut.word("replacement", std::string(kSpaceSign)) != kSpaceSign)
        cut.refuse("replacement", "\u2581 is read");
      const std::string scheme = cut.word("prepend_scheme", std::string("always"));
      if (scheme != "always" && scheme != "first" && scheme != "never")
        cut.refuse("prepend_scheme", "always, first and never are read");
      p.space = {scheme == "always"  ? SpaceRule::Where::every
                 : scheme == "first" ? SpaceRule::Where::first
                                     : SpaceRule::Where::nowhere,
                 true};
      p.words = cut.boolean("split", true);
    } else {
      // Behind the normalizer no space is left to cut at.
      const bool idle = kind == "Split" && cut.object("pattern").word("String", std::string()) == " ";
      if (!writes || (kind != "none" && !idle))
        json_.object("model").refuse("byte_fallback", "its way with spaces is not one of SentencePiece's");
    }
    p.strip = p.space.where != SpaceRule::Where::nowhere;
    for (const JsonObject& a : json_.objects("added_tokens"))
      if (a.boolean("normalized", false) && p.space.where == SpaceRule::Where::every && !p.space.unless_there)
        a.refuse("normalized", "with a space put before a text, special tokens are found as they are spelt");
  }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument, text(where_, ": ", parts...));
  }
  std::string& piece(Index id, Index most) {
    if (id >= most) refuse("a token has the id ", id, "; the model has ", most, " rows of logits");
    if (id >= std::ssize(parts_.pieces)) parts_.pieces.resize(static_cast<std::size_t>(id) + 1);
    return parts_.pieces[static_cast<std::size_t>(id)];
  }

  /// {"piece": id, ...}
  void read_pieces(const JsonObject& model, Index most) {
    const std::string* value = model.raw("vocab");
    if (value == nullptr) refuse("its model has no vocab");
    JsonReader r(*value, where_);
    r.take('{', "vocab");
    for (bool first = true; !r.try_take('}'); first = false) {
      if (!first) r.take(',', "vocab");
      std::string text = r.string("a piece", kMostPiece);
      r.take(':', "a piece");
      std::string& to = piece(r.integer("an id"), most);
      if (!to.empty()) r.refuse("two pieces have one id");
      to = std::move(text);
    }
  }
  void read_added(Index most) {
    for (const JsonObject& a : json_.objects("added_tokens")) {
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (a.boolean(key, false)) a.refuse(key, "special tokens are found as they are spelt");
      const Index id = a.integer("id", 0, most - 1);
      const std::string content = a.word("content");
      piece(id, most) = content;
      parts_.added.push_back({static_cast<TokenId>(id), content, a.boolean("special", true)});
    }
    for (std::size_t i = 0; i < parts_.pieces.size(); ++i)
      if (parts_.pieces[i].empty()) parts_.added.push_back({static_cast<TokenId>(i), "", true});  // a hole
  }
  /// ["left right", ...] or [["left", "right"], ...]
  void read_merges(const JsonObject& model) {
    const std::string* value = model.raw("merges");
    if (value == nullptr) refuse("its model has no merges");
    JsonReader r(*value, where_);
    r.take('[', "merges");
    for (bool first = true; !r.try_take(']'); first = false) {
      if (!first) r.take(',', "merges");
      if (r.try_take('[')) {
        std::string left = r.string("a merge", kMostPiece);
        r.take(',', "a merge");
        std::string right = r.string("a merge", kMostPiece);
        r.take(']', "a merge");
        parts_.merges.emplace_back(std::move(left), std::move(right));
        continue;
      }
      const std::string both = r.string("a merge", 2 * kMostPiece);
      const std::size_t space = both.find(' ');
      if (space == std::string::npos)
        r.refuse("the merge ", quoted(both), " has no space between its halves");
      parts_.merges.emplace_back(both.substr(0, space), both.substr(space + 1));
    }
  }

  void read_pattern() {
    const JsonObject cut = json_.object("pre_tokenizer");
    const std::string kind = cut.word("type", "none");
    std::vector<JsonObject> steps = cut.objects("pretokenizers");
    if (kind == "ByteLevel") steps.push_back(cut);
    const bool byte_level = !steps.empty() && steps.back().word("type") == "ByteLevel";
    if (!byte_level || steps.size() > 2) cut.refuse("type", "byte-level patterns of known models are read");
    const bool regex = steps.back().boolean("use_regex", true);
    if (steps.back().boolean("add_prefix_space", true))
      steps.back().refuse("add_prefix_space", "a text is read as it is");
    std::optional<WordPattern> pattern;
    if (steps.size() == 1 && regex) pattern = WordPattern::gpt2;
    if (steps.size() == 2 && regex && steps[0].word("type") == "Digits" &&
        steps[0].boolean("individual_digits", false))
      pattern = WordPattern::smollm;
    if (steps.size() == 2 && !regex && steps[0].word("type") == "Split" &&
        steps[0].word("behavior", std::string()) == "Isolated" && !steps[0].boolean("invert", false))
      pattern = split_word_pattern(steps[0].object("pattern").word("Regex", std::string()));
    if (!pattern) cut.refuse("type", "its way to cut words is not gpt2's, smollm's, llama3's or qwen2's");
    parts_.pattern = *pattern;
    const std::string normalizer = json_.object("normalizer").word("type", "none");
    if (normalizer != (*pattern == WordPattern::qwen2 ? "NFC" : "none"))
      json_.object("normalizer").refuse("type", "NFC with qwen2's pattern and none with others are read");
  }

  /// "single": a special token before the text, or none.
  void read_template() {
    if (bare_) return;
    const JsonObject post = json_.object("post_processor");
    std::vector<JsonObject> steps = post.objects("processors");
    if (post.has("type")) steps.push_back(post);
    for (const JsonObject& step : steps) {
      if (step.word("type") != "TemplateProcessing") continue;
      const std::vector<JsonObject> single = step.objects("single");
      if (single.empty() || single.size() > 2 || !single.back().has("Sequence"))
        step.refuse("single", "one token before the text, or none, is read");
      if (single.size() == 1) continue;
      const std::string spelling = single[0].object("SpecialToken").word("id");
      for (const ByteBpeParts::AddedToken& a : parts_.added)
        if (a.text == spelling) parts_.begin = a.id, parts_.add_begin = true;
      if (!parts_.add_begin) step.refuse("single", "the token ", quoted(spelling), " is not in added_tokens");
    }
  }

  const JsonObject& json_;
  std::string where_;
  bool bare_;
  ByteBpeParts parts_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_json_tokenizer(const std::string& path, Index rows, std::vector<TokenId> ends,
                                               bool bare) {
  const JsonObject json = JsonObject::read(path, kOp, kMostBytes);
  const std::string where = text(kOp, ": ", path);
  JsonTokenizer reader(json, where, bare);
  if (reader.of_characters()) {
    CharBpeParts parts = reader.char_parts(rows);
    parts.ends = std::move(ends);
    return std::make_unique<CharBpe>(parts, where);
  }
  ByteBpeParts parts = reader.parts(rows);
  parts.ends = std::move(ends);
  return std::make_unique<ByteBpe>(parts, where);
}

}  // namespace headwise
