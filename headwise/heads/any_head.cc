#include "headwise/heads/any_head.h"

#include <optional>

#include "headwise/heads/list.inc"

namespace headwise {
namespace {

/// `name` and what stands behind its colon.
std::pair<std::string_view, std::string_view> cut(std::string_view words) {
  const std::size_t colon = words.find(':');
  if (colon == words.npos) return {words, {}};
  return {words.substr(0, colon), words.substr(colon + 1)};
}

}  // namespace

std::string AnyHead::name() const {
  std::string s;
  for (const Stage& stage : stages()) s += text(s.empty() ? "" : "+", stage.table->name);
  return s;
}
std::string AnyHead::settings() const {
  std::string s;
  for (const Stage& stage : stages())
    s += text(s.empty() ? "" : "+", stage.table->settings(stage.head.get()));
  return s;
}
Index AnyHead::window() const {
  Index least = -1;
  for (const Stage& s : stages())
    if (const Index w = s.table->window ? s.table->window(s.head.get()) : -1; w >= 0)
      least = least < 0 ? w : min_of(least, w);
  return least;
}
double AnyHead::head_share() const {
  double share = 1;
  for (const Stage& s : stages())
    if (s.table->head_share) share *= s.table->head_share(s.head.get());
  return share;
}
std::string AnyHead::meets() const {
  std::string s;
  for (const Stage& stage : stages()) s += text(s.empty() ? "" : "; ", stage.table->meets);
  return s;
}
Widths AnyHead::widths() const {
  Widths w = stages_[0].table->widths(stages_[0].head.get());
  for (const Stage& stage : stages().subspan(1)) w.out = stage.table->widths(stage.head.get()).out;
  return w;
}
HeadSpec AnyHead::spec() const {
  HeadSpec spec = stages_[0].table->spec(stages_[0].head.get());
  for (const Stage& stage : stages().subspan(1)) {
    const HeadSpec over = stage.table->spec(stage.head.get());
    const Terms& terms = over.terms;
    require(!(terms.gate && spec.terms.gate), ErrorKind::unsupported, stage.table->name,
            "lies over a head that fills gate itself; leave one of them out");
    spec.terms = either(spec.terms, terms);
    if (over.norm == Norm::entmax) spec.norm = over.norm;
  }
  return spec;
}
void AnyHead::bind(HeadInputs& inputs, HeadGrads& grads) const {
  for (const Stage& stage : stages())
    if (stage.table->bind) stage.table->bind(stage.head.get(), inputs, grads);
}
void AnyHead::become_mha() const {
  for (const Stage& stage : stages())
    if (stage.table->become_mha) stage.table->become_mha(stage.head.get());
}

std::string head_names() {
  std::string s;
  AllHeads::each([&]<class H>(Type<H>) { s += text(s.empty() ? "" : ", ", H::name); });
  return s;
}

Index heads_in(std::string_view words) {
  const auto [name, settings] = cut(words.substr(0, words.find('+')));
  Index heads = 0;
  bool found = false;
  AllHeads::each([&, n = name, s = settings]<class H>(Type<H>) {
    if (H::name == n) found = true, heads = parse_config<H>(s).heads;
  });
  require(found, ErrorKind::bad_argument, "heads", "there is no head \"", name, "\"; there are ",
          head_names());
  return heads;
}

AnyHead make_head(std::string_view words, ParamSet& params, Place place) {
  constexpr Index kMostDim = Index{1} << 31;  // as kMostSetting: widths made of it fit an Index
  require(place.model_dim >= 0 && place.model_dim <= kMostDim, ErrorKind::bad_shape, "heads", "model_dim is ",
          place.model_dim, "; give 0 to ", kMostDim);
  require(place.layer >= 0 && place.layer <= kMostDim && place.depth >= 0 && place.depth <= kMostDim,
          ErrorKind::bad_argument, "heads", "layer is ", place.layer, " of ", place.depth, "; give 0 to ",
          kMostDim);
  std::optional<AnyHead> made;
  for (bool more = true; more;) {
    const std::string_view one = words.substr(0, words.find('+'));
    more = one.size() < words.size();
    words.remove_prefix(one.size() + more);
    const auto [name, settings] = cut(one);
    bool found = false;
    AllHeads::each([&, n = name, s = settings]<class H>(Type<H>) {
      if (H::name != n) return;
      found = true;
      if (!made) {
        made.emplace(H(parse_config<H>(s), params, place));
      } else if constexpr (requires(Below b) { H(parse_config<H>(s), params, place, b); }) {
        const auto scope = params.scope(text("over", made->stages().size()));
        made->add(H(parse_config<H>(s), params, place, made->below()));
      } else {
        throw Error(ErrorKind::unsupported,
                    text(n, ": lies over no other head; name it first, before the +"));
      }
    });
    require(found, ErrorKind::bad_argument, "heads", "there is no head \"", name, "\"; there are ",
            head_names());
  }
  return *made;
}

}  // namespace headwise
