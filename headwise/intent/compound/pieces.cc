#include "headwise/intent/compound/pieces.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_set>

#include "headwise/base/words.h"
#include "headwise/intent/compound/connectors.h"
#include "headwise/intent/compound/piece_words.h"

namespace headwise {
namespace {

struct Row {
  Index number = 0;  // in the corpus
  std::string_view text;
  std::vector<Index> labels;
  std::vector<ConnectorPlace> places;
};

struct Stretch {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
};

/// A way to cut a row: its pieces in order, of which at most one is not known.
struct Way {
  std::vector<Stretch> pieces;
  Index unknown = -1;
  Index bytes() const {
    Index sum = 0;
    for (const Stretch& p : pieces) sum += p.size();
    return sum;
  }
};

class Cutter {
 public:
  explicit Cutter(std::size_t labels) : known_(labels) {}

  void know(std::string_view text, Index label) {
    known_[static_cast<std::size_t>(label)].insert(piece_key(text));
  }
  /// The best way of a row whose pieces are all known; votes for the missing piece of others.
  bool look(const Row& row, Way& best, std::vector<Way>& votes) {
    keys_.clear();
    found_ = false, best_ = {}, votes_ = &votes;
    votes.clear();
    Way way;
    search(row, 0, way);
    best = best_;
    return found_;
  }
  static std::string_view text_of(const Row& row, const Stretch& s) {
    return without_blanks(
        row.text.substr(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.size())));
  }

 private:
  bool is_known(const Row& row, const Stretch& s, Index label) {
    std::string& key = keys_[{s.begin, s.end}];
    if (key.empty()) key = piece_key(text_of(row, s));
    return known_[static_cast<std::size_t>(label)].contains(key);
  }
  void take(const Row& row, const Stretch& piece, Index next, Way& way) {
    if (text_of(row, piece).empty()) return;
    const auto i = way.pieces.size();
    const bool known = is_known(row, piece, row.labels[i]);
    if (!known && way.unknown >= 0) return;
    if (!known) way.unknown = static_cast<Index>(i);
    way.pieces.push_back(piece);
    search(row, next, way);
    way.pieces.pop_back();
    if (!known) way.unknown = -1;
  }
  void search(const Row& row, Index at, Way& way) {
    if (way.pieces.size() == row.labels.size()) {
      if (way.unknown >= 0) {
        votes_->push_back(way);
      } else if (!found_ || way.bytes() < best_.bytes()) {
        found_ = true, best_ = way;
      }
      return;
    }
    if (way.pieces.size() + 1 == row.labels.size())
      return take(row, {at, static_cast<Index>(row.text.size())}, 0, way);
    for (const ConnectorPlace& p : row.places)
      if (p.begin > at) take(row, {at, p.begin}, p.end, way);
  }

  std::vector<std::unordered_set<std::string>> known_;
  std::map<std::pair<Index, Index>, std::string> keys_;
  bool found_ = false;
  Way best_;
  std::vector<Way>* votes_ = nullptr;
};

/// Pieces and connectors of rows, each once.
class Collected {
 public:
  explicit Collected(CutRows& to) : to_(to) {}
  void piece(std::string_view text, Index label) {
    if (seen_.emplace(label, piece_key(text)).second) to_.pieces.push_back({std::string(text), label});
  }
  void row(const Row& row, const Way& way) {
    ++to_.cut;
    for (std::size_t i = 0; i < way.pieces.size(); ++i) {
      piece(Cutter::text_of(row, way.pieces[i]), row.labels[i]);
      if (i > 0)
        ++to_.connectors[lowered(Cutter::text_of(row, {way.pieces[i - 1].end, way.pieces[i].begin}))];
    }
  }

 private:
  CutRows& to_;
  std::set<std::pair<Index, std::string>> seen_;
};

using Votes = std::map<std::pair<Index, std::string>, Index>;

/// What the ways of one row say of their unknown pieces; `single`: of the shortest way alone.
void add_votes(const Row& row, std::span<const Way> ways, bool single, Votes& votes) {
  const auto shorter = [](const Way& a, const Way& b) { return a.bytes() < b.bytes(); };
  if (single && !ways.empty())
    ways = ways.subspan(
        static_cast<std::size_t>(std::min_element(ways.begin(), ways.end(), shorter) - ways.begin()), 1);
  std::set<std::pair<Index, std::string>> own;
  for (const Way& w : ways) {
    const auto u = static_cast<std::size_t>(w.unknown);
    own.emplace(row.labels[u], std::string(Cutter::text_of(row, w.pieces[u])));
  }
  for (const auto& vote : own) ++votes[vote];
}

/// Cuts rows until nothing moves; what is left could not be cut. Every vote that is believed cuts the rows it
/// came from in the next round, so that rounds end.
std::vector<const Row*> cut_open(Cutter& cutter, std::vector<const Row*> open, Collected& collected) {
  for (bool single = false; !open.empty();) {
    Votes votes;
    std::vector<const Row*> left;
    Way best;
    std::vector<Way> ways;
    for (const Row* row : open) {
      if (cutter.look(*row, best, ways)) {
        collected.row(*row, best);
      } else {
        left.push_back(row);
        add_votes(*row, ways, single, votes);
      }
    }
    const bool moved = left.size() < open.size();
    open = std::move(left);
    bool learnt = false;
    for (const auto& [vote, count] : votes)
      if (count >= 2 || single) cutter.know(vote.second, vote.first), learnt = true;
    if (!moved && !learnt && single) break;
    single = !moved && !learnt;
  }
  return open;
}

/// The way to cut a row whose pieces fit their labels best, by words counted in pieces that are known.
class WordCutter {
 public:
  WordCutter(const PieceWords& words, const Row& row) : words_(words), row_(row) {
    if (static_cast<Index>(row.places.size()) > kMostPlaces) return;
    Way way;
    search(0, 0, way);
  }
  bool found() const { return !best_.pieces.empty(); }
  const Way& best() const { return best_; }

 private:
  static constexpr Index kMostPlaces = 64;
  static constexpr double kByte = 0.05;  // of a connector: of two that fit, the longer is taken off

  /// Of the label; infinite where another one fits better.
  double fit(const Stretch& s, Index label) {
    std::vector<double>& x = scores_[{s.begin, s.end}];
    if (x.empty()) x = words_.scores(Cutter::text_of(row_, s));
    const double own = x[static_cast<std::size_t>(label)];
    return own < *std::max_element(x.begin(), x.end()) ? -std::numeric_limits<double>::infinity() : own;
  }
  void take(const Stretch& piece, Index next, double score, Way& way) {
    if (Cutter::text_of(row_, piece).empty()) return;
    const double own = fit(piece, row_.labels[way.pieces.size()]);
    if (!std::isfinite(own)) return;
    way.pieces.push_back(piece);
    search(next, score + own + kByte * static_cast<double>(next - piece.end), way);
    way.pieces.pop_back();
  }
  void search(Index at, double score, Way& way) {
    if (way.pieces.size() == row_.labels.size()) {
      if (score > most_) most_ = score, best_ = way;
      return;
    }
    const auto end = static_cast<Index>(row_.text.size());
    if (way.pieces.size() + 1 == row_.labels.size()) return take({at, end}, end, score, way);
    for (const ConnectorPlace& p : row_.places)
      if (p.begin > at) take({at, p.begin}, p.end, score, way);
  }

  const PieceWords& words_;
  const Row& row_;
  std::map<std::pair<Index, Index>, std::vector<double>> scores_;
  double most_ = -std::numeric_limits<double>::infinity();
  Way best_;
};

}  // namespace

CutRows cut_rows(const Corpus& corpus, std::span<const std::string> labels,
                 std::span<const std::string> connectors) {
  CutRows out;
  Collected collected(out);
  Cutter cutter(labels.size());
  std::vector<Row> rows;  // of several labels
  for (std::size_t i = 0; i < corpus.rows.size(); ++i) {
    const Utterance& u = corpus.rows[i];
    Row row{.number = static_cast<Index>(i), .text = u.text, .labels = {}, .places = {}};
    for (const std::string& label : u.labels) {
      const auto at = std::find(labels.begin(), labels.end(), label);
      if (at != labels.end()) row.labels.push_back(at - labels.begin());
    }
    if (row.labels.empty() || row.labels.size() != u.labels.size()) continue;
    if (out.rows_by_labels.size() <= row.labels.size()) out.rows_by_labels.resize(row.labels.size() + 1);
    ++out.rows_by_labels[row.labels.size()];
    if (row.labels.size() == 1) {
      cutter.know(without_blanks(row.text), row.labels[0]);
      collected.piece(without_blanks(row.text), row.labels[0]);
    } else {
      row.places = connector_places(u.text, connectors);
      rows.push_back(std::move(row));
    }
  }
  std::vector<const Row*> open;
  for (const Row& row : rows) open.push_back(&row);
  open = cut_open(cutter, std::move(open), collected);
  PieceWords words(static_cast<Index>(labels.size()));
  if (!open.empty())
    for (const LabelledPiece& p : out.pieces) words.add(p.text, p.label);
  for (const Row* row : open) {
    const WordCutter by_words(words, *row);
    if (by_words.found())
      collected.row(*row, by_words.best()), ++out.by_words;
    else
      out.whole.push_back(row->number);
  }
  return out;
}

}  // namespace headwise
