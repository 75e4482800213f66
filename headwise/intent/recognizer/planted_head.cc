#include "headwise/intent/recognizer/planted_head.h"

#include <algorithm>
#include <charconv>

#include "headwise/text/roles.h"

namespace headwise {
namespace {

constexpr const char* kOp = "planted head";
// e^3 = 20: a token of the class weighs as much as 20 others before anything is learnt.
constexpr double kStart = 3;

bool take_number(std::string_view& text, Index& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc{};
}

}  // namespace

std::string planted_text(std::string_view request, const RoleBook& book) {
  const std::size_t colon = std::min(request.find(':'), request.size());
  std::string_view place = request.substr(std::min(colon + 1, request.size()));
  Index layer = 0, head = 0;
  bool good = take_number(place, head);
  if (good && place.starts_with('.')) layer = head, place.remove_prefix(1), good = take_number(place, head);
  require(good && place.empty(), ErrorKind::bad_argument, kOp, "got \"", request,
          "\"; give CLASS:HEAD or CLASS:LAYER.HEAD, as number:0");
  const int at = book.find_class(request.substr(0, colon));
  std::string names;
  for (const TokenClass& c : book.classes())
    if (c.has_meaning()) names += (names.empty() ? "" : ", ") + c.name;
  require(at >= 0 && book.classes()[static_cast<std::size_t>(at)].has_meaning(), ErrorKind::bad_argument, kOp,
          "there is no class \"", request.substr(0, colon), "\"; classes are ", names);
  const TokenClass& c = book.classes()[static_cast<std::size_t>(at)];
  std::string words = c.digits ? "@digits" : "";
  for (const std::string& w : c.words) words += (words.empty() ? "" : " | ") + w;
  return text(layer, ".", head, " class ", c.name, ": ", words);
}

PlantedHead::PlantedHead(ParamSet& params, std::string_view planted, const Vocabulary& vocabulary,
                         const Transformer& encoder) {
  std::string_view rest = planted;
  bool good = take_number(rest, layer_) && rest.starts_with('.');
  if (good) rest.remove_prefix(1), good = take_number(rest, head_) && rest.starts_with(' ');
  require(good, ErrorKind::bad_argument, kOp, "got \"", planted, "\"; give LAYER.HEAD class NAME: words");
  const Index depth = encoder.config().depth;
  require(layer_ >= 0 && layer_ < depth, ErrorKind::bad_argument, kOp, "layer ", layer_,
          " is asked but the encoder has ", depth, "; layers count from 0");
  const MultiHead& attention = *encoder.stack().block(layer_).self_attention();
  const Index heads = attention.head_count();
  require(head_ >= 0 && head_ < heads, ErrorKind::bad_argument, kOp, "head ", head_,
          " is asked but a layer has ", heads, "; heads count from 0");
  maps_ = attention.head().spec().q.heads, map_ = head_ * (maps_ / heads);
  const RoleBook book = RoleBook::parse(rest.substr(1), "planted");
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    std::string_view piece = vocabulary.piece(id);
    const bool inside = piece.starts_with("##");
    if (inside) piece.remove_prefix(2);
    const TextSpan whole{0, static_cast<Index>(piece.size())};
    const bool member = book.classes_of(piece, std::span(&whole, 1))[0] != 0;
    // A word's middle is no word; its digits are.
    members_.push_back(member && (!inside || piece.find_first_of("0123456789") != std::string_view::npos));
  }
  bias_ = params.add("planted.bias", {1}, Init::constant(kStart));
}

/// f(entry of [chunks maps 1 longest]) for every key of the class; where there is none, for [CLS]: the head
/// rests there, or it would learn some other work in such texts.
template <class F>
void PlantedHead::each_entry(const TextBatch& batch, F&& f) const {
  const Index longest = batch.sequences().longest();
  for (std::size_t c = 0; c + 1 < batch.chunks.size(); ++c) {
    const Index first = (static_cast<Index>(c) * maps_ + map_) * longest;
    bool found = false;
    for (Index t = batch.chunks[c]; t < batch.chunks[c + 1]; ++t) {
      if (!members_[static_cast<std::size_t>(batch.ids[static_cast<std::size_t>(t)])]) continue;
      f(first + t - batch.chunks[c]);
      found = true;
    }
    if (!found) f(first);
  }
}

void PlantedHead::forward(const TextBatch& batch, Call& call, Saved* saved) const {
  const AnyView value = bias_.value();
  const DType dtype = value.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Sequences s = batch.sequences();
  const AnyView bias = call.memory.take(dtype, {s.count(), maps_, 1, s.longest()});
  fill_zeros(bias);
  const double now = load_double(value.data, value.dtype, 0);
  each_entry(batch, [&](Index i) { store_double(bias.data, dtype, i, now); });
  call.score_bias = bias, call.bias_block = layer_, call.dscore_bias = {};
  if (!saved || !bias_.grad().given()) return;
  call.dscore_bias = saved->slope = call.memory.take(dtype, {s.count(), maps_, 1, s.longest()});
}

void PlantedHead::backward(const TextBatch& batch, const Saved& saved) const {
  const AnyView sum = bias_.grad();
  if (!sum.given() || !saved.slope.given()) return;
  double slope = 0;
  each_entry(batch, [&](Index i) { slope += load_double(saved.slope.data, saved.slope.dtype, i); });
  store_double(sum.data, sum.dtype, 0, load_double(sum.data, sum.dtype, 0) + slope);
}

}  // namespace headwise
