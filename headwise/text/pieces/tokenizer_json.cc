#include "headwise/text/pieces/tokenizer_json.h"

#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/byte_bpe.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "tokenizer";
constexpr Index kMostTokens = 2'000'000, kMostBytes = Index{256} << 20, kMostPiece = 4096;

class JsonTokenizer {
 public:
  JsonTokenizer(const JsonObject& json, std::string where) : json_(json), where_(std::move(where)) {}

  ByteBpeParts parts(Index rows) {
    const JsonObject model = json_.object("model");
    if (model.word("type", "BPE") != "BPE") model.refuse("type", "BPE is read");
    if (model.boolean("byte_fallback", false)) model.refuse("byte_fallback", "byte-level BPE is read");
    if (model.number("dropout", 0, 1, 0.0) != 0) model.refuse("dropout", "ids must not depend on chance");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!model.word(key, std::string()).empty()) model.refuse(key, "pieces have neither prefix nor suffix");
    parts_.whole_words = model.boolean("ignore_merges", false);
    read_pieces(model, rows > 0 ? rows : kMostTokens);
    read_added(rows > 0 ? rows : kMostTokens);
    read_merges(model);
    read_pattern();
    read_template();
    return std::move(parts_);
  }

 private:
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
    if (!pattern)
      cut.refuse("type", "its way to cut words is none of gpt2's, smollm's, llama3's and qwen2's");
    parts_.pattern = *pattern;
    const std::string normalizer = json_.object("normalizer").word("type", "none");
    if (normalizer != (*pattern == WordPattern::qwen2 ? "NFC" : "none"))
      json_.object("normalizer").refuse("type", "NFC with qwen2's pattern and none with others are read");
  }

  /// "single": a special token before the text, or none.
  void read_template() {
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
      if (!parts_.add_begin)
        step.refuse("single", "the token ", quoted(spelling), " is none of added_tokens");
    }
  }

  const JsonObject& json_;
  std::string where_;
  ByteBpeParts parts_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_json_tokenizer(const std::string& path, Index rows,
                                               std::vector<TokenId> ends) {
  const JsonObject json = JsonObject::read(path, kOp, kMostBytes);
  const std::string where = text(kOp, ": ", path);
  ByteBpeParts parts = JsonTokenizer(json, where).parts(rows);
  parts.ends = std::move(ends);
  return std::make_unique<ByteBpe>(parts, where);
}

}  // namespace headwise
