#include "headwise/text/pieces/tokenizer_gguf.h"

#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/byte_bpe.h"
#include "headwise/text/pieces/score_bpe.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "tokenizer";
constexpr Index kMostTokens = 2'000'000;
constexpr int kNormal = 1, kControl = 3, kOwn = 4, kUnused = 5, kByte = 6;  // the file's types of tokens

struct Common {
  std::string where;
  std::vector<std::string> pieces;
  std::vector<int> types;
  std::vector<double> scores;
  TokenId begin = -1;
  std::vector<TokenId> ends;
};

Common common_of(const Gguf& file, Index rows) {
  Common c;
  c.where = text(kOp, ": ", file.path());
  c.pieces = file.words("tokenizer.ggml.tokens");
  const auto size = static_cast<Index>(c.pieces.size());
  require(size > 0 && size <= (rows > 0 ? rows : kMostTokens), ErrorKind::bad_argument, c.where, "has ", size,
          " tokens; the model has ", rows, " rows of logits");
  for (const double type : file.numbers("tokenizer.ggml.token_type")) {
    require(type >= 0 && type <= kByte, ErrorKind::bad_argument, c.where, "a token has the unknown type ",
            type);
    c.types.push_back(static_cast<int>(type));
  }
  c.types.resize(c.pieces.size(), kNormal);
  c.scores = file.numbers("tokenizer.ggml.scores");
  c.scores.resize(c.pieces.size(), 0);
  c.begin = static_cast<TokenId>(file.integer("tokenizer.ggml.bos_token_id", 0, size - 1, -1));
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (file.has(key)) c.ends.push_back(static_cast<TokenId>(file.integer(key, 0, size - 1)));
  return c;
}

std::unique_ptr<Tokenizer> byte_bpe_of(const Gguf& file, Common c) {
  ByteBpeParts p;
  const std::string name = file.word("tokenizer.ggml.pre", "gpt-2");
  const std::optional<WordPattern> pattern = gguf_word_pattern(name);
  require(pattern.has_value(), ErrorKind::unsupported, c.where, "cuts words by the pattern ", quoted(name),
          "; gpt-2, smollm, llama-bpe and qwen2 are known");
  p.pattern = *pattern, p.whole_words = *pattern == WordPattern::llama3;
  for (std::size_t i = 0; i < c.pieces.size(); ++i)
    if (c.types[i] == kControl || c.types[i] == kOwn || c.types[i] == kUnused)
      p.added.push_back(
          {static_cast<TokenId>(i), c.types[i] == kUnused ? "" : c.pieces[i], c.types[i] != kOwn});
  p.pieces = std::move(c.pieces);
  for (const std::string& merge : file.words("tokenizer.ggml.merges")) {
    const std::size_t space = merge.find(' ', 1);
    require(space != std::string::npos, ErrorKind::bad_argument, c.where, "the merge ", quoted(merge),
            " has no space between its halves");
    p.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  p.begin = c.begin, p.ends = c.ends;
  p.add_begin = file.boolean("tokenizer.ggml.add_bos_token", false) && c.begin >= 0;
  return std::make_unique<ByteBpe>(p, c.where);
}

std::unique_ptr<Tokenizer> score_bpe_of(const Gguf& file, const Common& c) {
  using Kind = ScoreBpeParts::Kind;
  constexpr Kind kKinds[] = {Kind::plain, Kind::plain,   Kind::unknown, Kind::control,
                             Kind::own,   Kind::control, Kind::byte};
  constexpr std::string_view kSpace = "\xe2\x96\x81";
  ScoreBpeParts p;
  for (std::size_t i = 0; i < c.pieces.size(); ++i) {
    ScoreBpeParts::Piece piece{c.pieces[i], c.scores[i], kKinds[c.types[i]]};
    if (c.types[i] == kUnused) piece.text.clear();
    for (std::size_t at = 0; (at = piece.text.find(kSpace, at)) != std::string::npos; ++at)
      piece.text.replace(at, kSpace.size(), " ");
    p.pieces.push_back(std::move(piece));
  }
  p.begin = c.begin, p.ends = c.ends;
  p.add_begin = file.boolean("tokenizer.ggml.add_bos_token", true) && c.begin >= 0;
  p.space_before = file.boolean("tokenizer.ggml.add_space_prefix", true);
  return std::make_unique<ScoreBpe>(p, c.where);
}

}  // namespace

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const Gguf& file, Index rows) {
  const std::string kind = file.word("tokenizer.ggml.model");
  if (kind == "gpt2") return byte_bpe_of(file, common_of(file, rows));
  if (kind == "llama") return score_bpe_of(file, common_of(file, rows));
  throw Error(ErrorKind::unsupported,
              text(kOp, ": ", file.path(), ": is of the kind ", quoted(kind), "; gpt2 and llama are read"));
}

}  // namespace headwise
