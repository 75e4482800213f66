#include "headwise/intent/compound/joined_texts.h"

#include <algorithm>

#include "headwise/base/error.h"
#include "headwise/base/random.h"
#include "headwise/intent/compound/connectors.h"

namespace headwise {
namespace {

constexpr double kBroken = 0.3;      // of the pieces that hold a connector
constexpr double kOtherJoins = 0.1;  // of the joins use a connector that no row showed
constexpr std::uint32_t kCompound = 0xc0f0u, kPiece = 0xc0f1u;  // streams of numbers

}  // namespace

class JoinedTexts::Draw {
 public:
  Draw(std::uint64_t seed, std::uint32_t stream, std::uint32_t number)
      : seed_(seed), counter_{0, number, 0, stream} {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(std::uint64_t{word()} * n >> 32); }
  double share() { return static_cast<double>(word()) / 4294967296.0; }

 private:
  std::uint32_t word() {
    if (next_ == 4) {
      block_ = Philox::block(seed_, counter_);
      ++counter_[0];
      next_ = 0;
    }
    return block_[next_++];
  }
  std::uint64_t seed_;
  Philox::Block counter_, block_{};
  std::size_t next_ = 4;
};

JoinedTexts::JoinedTexts(const CutRows& rows, Index labels, std::span<const std::string> connectors,
                         const Tokenize& tokenize)
    : labels_(labels) {
  for (auto& lists : by_label_) lists.resize(static_cast<std::size_t>(labels));
  std::vector<std::string> marks(connectors.begin(), connectors.end());
  for (const LabelledPiece& p : rows.pieces) {
    Piece piece{.ids = tokenize(p.text), .breaks = {}, .chinese = holds_chinese(p.text)};
    if (piece.ids.empty()) continue;
    for (const ConnectorPlace& at : connector_places(p.text, marks)) {
      // Tokens of the text before it and of it: both end at a word's end, so they are tokenized alone.
      const std::size_t first = tokenize(p.text.substr(0, static_cast<std::size_t>(at.begin))).size(),
                        last = tokenize(p.text.substr(0, static_cast<std::size_t>(at.end))).size();
      if (first > 0 && last < piece.ids.size() && last > first) piece.breaks.emplace_back(first, last);
    }
    by_label_[piece.chinese ? 1 : 0][static_cast<std::size_t>(p.label)].push_back(pieces_.size());
    pieces_.push_back(std::move(piece));
  }
  for (std::size_t l = 0; l < static_cast<std::size_t>(labels); ++l)
    if (!by_label_[0][l].empty() || !by_label_[1][l].empty()) learnt_.push_back(static_cast<Index>(l));
  require(
      learnt_.size() > 1, ErrorKind::bad_argument, "compound", "pieces of ", learnt_.size(),
      " labels were found in rows of one label and in those that could be cut; give rows of one label, or ",
      "the connectors that stand between intents");
  double all = 0, sum = 0;
  const std::size_t most = std::min(rows.rows_by_labels.size(), learnt_.size() + 1);
  for (std::size_t n = 1; n < most; ++n) all += static_cast<double>(rows.rows_by_labels[n]);
  for (std::size_t n = 1; n < most; ++n)
    share_.push_back((sum += static_cast<double>(rows.rows_by_labels[n])) / all);
  add_connectors(rows, connectors, tokenize);
}

void JoinedTexts::add_connectors(const CutRows& rows, std::span<const std::string> others,
                                 const Tokenize& tokenize) {
  const auto is_ascii = [](const std::string& s) {
    return std::none_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  };
  for (const bool chinese : {false, true}) {
    std::vector<std::pair<std::vector<TokenId>, double>> list;
    double seen = 0;
    // Marks of a language are its own: an ASCII connector joins no Chinese, unless rows show nothing else.
    for (const auto& [connector, count] : rows.connectors)
      if (is_ascii(connector) != chinese) {
        list.emplace_back(tokenize(connector), static_cast<double>(count)),
            seen += static_cast<double>(count);
      }
    std::vector<std::vector<TokenId>> more;
    for (const std::string& connector : others)
      if (is_ascii(connector) != chinese && !rows.connectors.contains(connector))
        more.push_back(tokenize(connector));
    const double each =
        seen > 0 ? seen * kOtherJoins / (1 - kOtherJoins) / static_cast<double>(more.size()) : 1;
    for (auto& ids : more) list.emplace_back(std::move(ids), each);
    double all = 0, sum = 0;
    for (const auto& [ids, weight] : list) all += ids.empty() ? 0 : weight;
    for (auto& [ids, weight] : list)
      if (!ids.empty()) connectors_[chinese ? 1 : 0].push_back({std::move(ids), (sum += weight) / all});
  }
  for (const int i : {0, 1})
    if (connectors_[i].empty()) connectors_[i] = connectors_[1 - i];
  require(!connectors_[0].empty(), ErrorKind::bad_argument, "compound",
          "no connector is given and none was seen; give those that stand between intents");
}

Index JoinedTexts::connector_tokens() const {
  std::size_t most = 0;
  for (const auto& list : connectors_)
    for (const Connector& c : list) most = std::max(most, c.ids.size());
  return static_cast<Index>(most);
}

const JoinedTexts::Piece& JoinedTexts::piece_of(Index label, const bool* chinese, Draw& draw) const {
  const auto l = static_cast<std::size_t>(label);
  const auto &ascii = by_label_[0][l], &other = by_label_[1][l];
  if (chinese && !by_label_[*chinese ? 1 : 0][l].empty()) {
    const auto& list = by_label_[*chinese ? 1 : 0][l];
    return pieces_[list[draw.below(list.size())]];
  }
  const std::size_t at = draw.below(ascii.size() + other.size());
  return pieces_[at < ascii.size() ? ascii[at] : other[at - ascii.size()]];
}

const JoinedTexts::Connector& JoinedTexts::connector(bool chinese, Draw& draw) const {
  const auto& list = connectors_[chinese ? 1 : 0];
  const double share = draw.share();
  for (const Connector& c : list)
    if (share < c.upto) return c;
  return list.back();
}

DrawnText JoinedTexts::compound(std::uint64_t seed, std::uint32_t number) const {
  Draw draw(seed, kCompound, number);
  const double share = draw.share();
  std::size_t intents = 1;
  while (intents < share_.size() && share >= share_[intents - 1]) ++intents;
  std::vector<Index> chosen;
  while (chosen.size() < intents) {
    const Index label = learnt_[draw.below(learnt_.size())];
    if (std::find(chosen.begin(), chosen.end(), label) == chosen.end()) chosen.push_back(label);
  }
  DrawnText out;
  bool chinese = false;
  for (std::size_t i = 0; i < intents; ++i) {
    const Piece& piece = piece_of(chosen[i], i == 0 ? nullptr : &chinese, draw);
    if (i == 0) chinese = piece.chinese;
    if (i > 0) {
      const Connector& between = connector(chinese, draw);
      out.ids.insert(out.ids.end(), between.ids.begin(), between.ids.end());
      out.marks.resize(out.ids.size(), TokenMark::connector);
    }
    const std::size_t begin = out.ids.size();
    out.ids.insert(out.ids.end(), piece.ids.begin(), piece.ids.end());
    out.marks.resize(out.ids.size(), TokenMark::plain);
    if (i > 0) out.marks[begin] = TokenMark::start;
  }
  out.label = intents == 1 ? chosen[0] : labels_;
  return out;
}

DrawnText JoinedTexts::piece(std::uint64_t seed, std::uint32_t number) const {
  Draw draw(seed, kPiece, number);
  const Index label = learnt_[draw.below(learnt_.size())];
  const Piece& piece = piece_of(label, nullptr, draw);
  DrawnText out{.ids = piece.ids, .marks = {}, .label = label};
  if (!piece.breaks.empty() && draw.share() < kBroken) {
    const auto [first, last] = piece.breaks[draw.below(piece.breaks.size())];
    const bool left = draw.below(2) == 0;
    out.ids.assign(piece.ids.begin() + static_cast<std::ptrdiff_t>(left ? 0 : last),
                   left ? piece.ids.begin() + static_cast<std::ptrdiff_t>(first) : piece.ids.end());
    out.label = labels_;
  }
  out.marks.assign(out.ids.size(), TokenMark::plain);
  return out;
}

}  // namespace headwise
