// Callable: a function object its holder keeps; std::function without the 0.15 s of <functional>.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace headwise {

template <class Signature>
class Callable;

/// Empty, or a function. Copies share the function object and what it holds.
template <class Result, class... Arguments>
class Callable<Result(Arguments...)> {
 public:
  Callable() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Callable> &&
           std::is_invocable_r_v<Result, F&, Arguments...>)
      Callable(F&& f)  // NOLINT: a function is a Callable
      : object_(std::make_shared<std::decay_t<F>>(std::forward<F>(f))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::decay_t<F>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  explicit operator bool() const noexcept { return call_ != nullptr; }
  friend bool operator==(const Callable& c, std::nullptr_t) noexcept { return c.call_ == nullptr; }
  Result operator()(Arguments... arguments) const {
    return call_(object_.get(), std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<void> object_;
  Result (*call_)(void*, Arguments...) = nullptr;
};

}  // namespace headwise
