#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "headwise/analysis/answer_json.h"
#include "headwise/c/guard.h"
#include "headwise/c/recognizer.h"

using namespace headwise;

struct hw_recognizer {
  hw_recognizer(const char* folder, int threads, Index likeliest)
      : session({.threads = threads}), model(Recognizer::load(folder)), top(likeliest) {}
  Session session;
  Recognizer model;
  Index top;
  std::atomic<bool> busy{false};
};

namespace {

/// Holds a recogniser for one call: a second thread is told, and changes nothing.
class RecognizerUse {
 public:
  RecognizerUse(hw_recognizer& r, const char* entry) : busy_(r.busy) {
    require(!busy_.exchange(true), ErrorKind::bad_argument, entry,
            "the recogniser is at work in another thread; load one for each thread");
  }
  RecognizerUse(const RecognizerUse&) = delete;
  RecognizerUse& operator=(const RecognizerUse&) = delete;
  ~RecognizerUse() { busy_ = false; }

 private:
  std::atomic<bool>& busy_;
};

/// A copy that C frees.
char* copied(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

hw_status hw_recognizer_load(const char* folder, const hw_recognizer_options* options,
                             hw_recognizer** recognizer) {
  constexpr const char* kEntry = "hw_recognizer_load";
  return c::guarded(kEntry, [&] {
    c::require_given(folder, kEntry, "folder");
    c::require_given(recognizer, kEntry, "recognizer");
    hw_recognizer_options o{};
    if (options != nullptr) o = c::sized_copy(options, kEntry, "options");
    require(o.top >= 0, ErrorKind::bad_argument, kEntry, "top is ", o.top, "; give 0 or more");
    *recognizer = new hw_recognizer(folder, o.threads, o.top == 0 ? 3 : o.top);
  });
}

void hw_recognizer_free(hw_recognizer* recognizer) { delete recognizer; }

hw_status hw_recognizer_predict(hw_recognizer* recognizer, const char* text, char** answer) {
  constexpr const char* kEntry = "hw_recognizer_predict";
  return c::guarded(kEntry, [&] {
    c::require_given(recognizer, kEntry, "recognizer");
    c::require_given(text, kEntry, "text");
    c::require_given(answer, kEntry, "answer");
    const RecognizerUse use(*recognizer, kEntry);
    const Prediction p = recognizer->model.predict(text, recognizer->session);
    *answer = copied(answer_json(recognizer->model.config(), text, p, recognizer->top));
  });
}

hw_status hw_recognizer_explain(hw_recognizer* recognizer, const char* text, const char* label,
                                char** answer) {
  constexpr const char* kEntry = "hw_recognizer_explain";
  return c::guarded(kEntry, [&] {
    c::require_given(recognizer, kEntry, "recognizer");
    c::require_given(text, kEntry, "text");
    c::require_given(answer, kEntry, "answer");
    const RecognizerUse use(*recognizer, kEntry);
    const Recognizer& model = recognizer->model;
    const Prediction p = model.predict(text, recognizer->session);
    const std::vector<Explanation> why =
        explain_labels(model, text, p, label == nullptr ? "" : label, recognizer->session);
    *answer = copied(answer_json(model.config(), text, p, recognizer->top, why));
  });
}

void hw_recognizer_answer_free(char* answer) { std::free(answer); }
