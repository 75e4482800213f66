// AnyHead: any head of the list as one value with a table of functions; what layers and tools hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "headwise/heads/config.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// A head's Work, whatever its type: views and numbers, copied with the bytes.
struct HeadWork {
  static constexpr std::size_t kBytes = 1536;
  alignas(std::max_align_t) std::byte bytes[kBytes];
};

struct NoWork {};
template <class H>
struct WorkOf {
  using type = NoWork;
};
template <class H>
requires requires { typename H::Work; }
struct WorkOf<H> {
  using type = typename H::Work;
};

/// The functions of one head type; null: the head has none, so identity.
struct HeadTable {
  std::string_view name, meets;
  bool on_devices;  // runs where its tensors lie
  std::string (*settings)(const void*);
  Widths (*widths)(const void*);
  HeadSpec (*spec)(const void*);
  void (*bind)(const void*, HeadInputs&, HeadGrads&);
  void (*book)(const void*, HeadCall&, HeadWork&, Arena&);
  void (*book_backward)(const void*, HeadCall&, HeadWork&, Arena&);
  void (*prepare)(const void*, HeadCall&, HeadWork&, Context&);
  void (*finish)(const void*, HeadCall&, HeadWork&, Context&);
  void (*finish_backward)(const void*, HeadCall&, HeadWork&, Context&);
  void (*prepare_backward)(const void*, HeadCall&, HeadWork&, Context&);
  void (*become_mha)(const void*);
  double (*flops)(const void*, const AttentionProblem&);
  Index (*window)(const void*);
  double (*head_share)(const void*);
};

template <Head H>
const HeadTable& head_table() {
  using Work = typename WorkOf<H>::type;
  static_assert(std::is_trivially_copyable_v<Work> && sizeof(Work) <= HeadWork::kBytes,
                "a head's Work holds views and numbers, at most HeadWork::kBytes of them");
  constexpr bool books = requires(const H h, HeadCall& c, Arena& a) { h.book(c, a); };
  constexpr bool prepares = requires(const H h, HeadCall& c, Work& w, Context& x) { h.prepare(c, w, x); };
  constexpr bool finishes = requires(const H h, HeadCall& c, Work& w, Context& x) { h.finish(c, w, x); };
  constexpr bool books_back = requires(const H h, HeadCall& c, Work& w, Arena& a) {
    h.book_backward(c, w, a);
  };
  constexpr bool prepares_back = requires(const H h, HeadCall& c, Work& w, Context& x) {
    h.prepare_backward(c, w, x);
  };
  constexpr bool finishes_back = requires(const H h, HeadCall& c, Work& w, Context& x) {
    h.finish_backward(c, w, x);
  };
  static_assert(prepares == prepares_back && finishes == finishes_back,
                "prepare and finish come with their backwards");
  static_assert(books || !(prepares || finishes), "prepare and finish take their memory in book");
  static constexpr auto of = [](const void* h) -> const H& { return *static_cast<const H*>(h); };
  [[maybe_unused]] static constexpr auto in = [](HeadWork& w) -> Work& {
    return *std::launder(reinterpret_cast<Work*>(w.bytes));
  };
  static constexpr HeadTable table = [] {
    HeadTable t{};
    t.name = H::name, t.meets = H::meets;
    if constexpr (requires { H::on_devices; })
      t.on_devices = H::on_devices;
    else
      t.on_devices = !(prepares || finishes);
    t.settings = [](const void* h) { return config_text<H>(of(h).config()); };
    t.widths = [](const void* h) { return of(h).widths(); };
    t.spec = [](const void* h) { return of(h).spec(); };
    if constexpr (requires(const H h, HeadInputs& i, HeadGrads& g) { h.bind(i, g); })
      t.bind = [](const void* h, HeadInputs& i, HeadGrads& g) { of(h).bind(i, g); };
    if constexpr (books)
      t.book = [](const void* h, HeadCall& c, HeadWork& w, Arena& a) {
        ::new (static_cast<void*>(w.bytes)) Work(of(h).book(c, a));
      };
    if constexpr (books_back)
      t.book_backward = [](const void* h, HeadCall& c, HeadWork& w, Arena& a) {
        of(h).book_backward(c, in(w), a);
      };
    if constexpr (prepares) {
      t.prepare = [](const void* h, HeadCall& c, HeadWork& w, Context& x) { of(h).prepare(c, in(w), x); };
      t.prepare_backward = [](const void* h, HeadCall& c, HeadWork& w, Context& x) {
        of(h).prepare_backward(c, in(w), x);
      };
    }
    if constexpr (finishes) {
      t.finish = [](const void* h, HeadCall& c, HeadWork& w, Context& x) { of(h).finish(c, in(w), x); };
      t.finish_backward = [](const void* h, HeadCall& c, HeadWork& w, Context& x) {
        of(h).finish_backward(c, in(w), x);
      };
    }
    if constexpr (requires(const H h) { h.become_mha(); })
      t.become_mha = [](const void* h) { of(h).become_mha(); };
    if constexpr (requires(const H h, const AttentionProblem& p) { h.flops(p); })
      t.flops = [](const void* h, const AttentionProblem& p) { return of(h).flops(p); };
    if constexpr (requires(const H h) { h.window(); })
      t.window = [](const void* h) -> Index { return of(h).window(); };
    if constexpr (requires(const H h) { h.head_share(); })
      t.head_share = [](const void* h) { return of(h).head_share(); };
    return t;
  }();
  return table;
}

/// A head and what lies over it. Copies share the heads.
class AnyHead {
 public:
  static constexpr int kMost = 3;  // the head and two over it

  template <Head H>
  explicit AnyHead(H head) {
    add(std::move(head));
  }
  /// Puts `head`, made with this->below(), over the others.
  template <Head H>
  void add(H head) {
    require(count_ < kMost, ErrorKind::unsupported, H::name, "lies over ", count_, " heads already; at most ",
            kMost, " are joined");
    stages_[count_++] = {&head_table<H>(), std::make_shared<H>(std::move(head))};
  }

  /// `moh+gated`
  std::string name() const;
  /// `gqa:heads=8,kv_heads=2,dim=64`: make_head of it is this head again.
  std::string settings() const;
  Widths widths() const;
  HeadSpec spec() const;
  Below below() const { return {spec(), widths()}; }
  void bind(HeadInputs& inputs, HeadGrads& grads) const;
  /// Sets the learned values at which settings of as_mha are MHA.
  void become_mha() const;
  /// Keys on each side of a query that the head joins with the caller's mask; -1: all.
  Index window() const;
  /// Heads a token is worked on by, of all; below 1 where the others are left out.
  double head_share() const;
  /// Where heads exchange information, a phrase for each that is joined.
  std::string meets() const;

  struct Stage {
    const HeadTable* table = nullptr;
    std::shared_ptr<const void> head;  // one place for its life: views of its constants stay valid
  };
  std::span<const Stage> stages() const { return {stages_, static_cast<std::size_t>(count_)}; }

 private:
  Stage stages_[kMost];
  int count_ = 0;
};

/// `name` or `name:key=value,...`; more of them joined by `+` lie over the first, and their parameters are
/// named over1.gate, over2.gate. Unknown names and keys are errors that list the known ones.
AnyHead make_head(std::string_view text, ParamSet& params, Place place);
/// What `heads=` of the first head in such a text is, or its default.
Index heads_in(std::string_view text);
/// Names of every head, in the order of their files.
std::string head_names();

}  // namespace headwise
#pragma GCC visibility pop
