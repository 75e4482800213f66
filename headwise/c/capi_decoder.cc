#include <atomic>

#include "headwise/base/context.h"
#include "headwise/c/decoder.h"
#include "headwise/c/guard.h"
#include "headwise/decoder/decoder_host.h"

using namespace headwise;

struct hw_decoder {
  hw_decoder(const char* path, const DecoderHostOptions& options, int threads)
      : ctx({.threads = threads}), host(path, options, ctx) {}
  Context ctx;
  DecoderHost host;
  std::atomic<bool> busy{false};
};

namespace {

GenerateRequest request_of(const hw_generate_options& o, std::vector<TokenId> prompt, const char* entry) {
  GenerateRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = o.max_tokens == 0 ? 256 : o.max_tokens;
  SamplingOptions& s = r.sampling;
  s.temperature = o.temperature, s.top_k = o.top_k, s.top_p = o.top_p == 0 ? 1 : o.top_p, s.min_p = o.min_p;
  s.repetition_penalty = o.repetition_penalty == 0 ? 1 : o.repetition_penalty;
  s.frequency_penalty = o.frequency_penalty, s.presence_penalty = o.presence_penalty, s.seed = o.seed;
  if (o.stop_count > 0) c::require_given(o.stops, entry, "options.stops");
  for (std::size_t i = 0; i < o.stop_count; ++i) {
    c::require_given(o.stops[i], entry, "a stop text");
    r.stop.emplace_back(o.stops[i]);
  }
  r.ignore_end = o.ignore_end != 0;
  return r;
}

int32_t finish_of(Finish f) {
  return f == Finish::stop ? HW_FINISH_STOP : f == Finish::length ? HW_FINISH_LENGTH : HW_FINISH_CANCELLED;
}

/// Ends a request that did not end itself.
struct Ended {
  DecoderHost& host;
  const RequestId* id;
  ~Ended() { host.drop({id, 1}); }
};

struct Busy {
  explicit Busy(std::atomic<bool>& b) : flag(b) {
    require(!flag.exchange(true), ErrorKind::bad_argument, "hw_decoder_generate",
            "the decoder is in use; one thread at a time, and not from its callback");
  }
  ~Busy() { flag = false; }
  std::atomic<bool>& flag;
};

}  // namespace

hw_status hw_decoder_open(const char* path, const hw_decoder_options* options, hw_decoder** decoder) {
  constexpr const char* kEntry = "hw_decoder_open";
  return c::guarded(kEntry, [&] {
    c::require_given(path, kEntry, "path");
    c::require_given(decoder, kEntry, "decoder");
    hw_decoder_options o{};
    if (options != nullptr) o = c::sized_copy(options, kEntry, "options");
    DecoderHostOptions host;
    if (o.dtype != nullptr) host.model.dtype = weights_dtype_named("hw_decoder_open: dtype", o.dtype);
    if (o.kv_dtype != nullptr) host.kv_dtype = kv_dtype_named("hw_decoder_open: kv_dtype", o.kv_dtype);
    require(o.kv_bytes >= 0, ErrorKind::bad_argument, kEntry, "kv_bytes is ", o.kv_bytes, "; give 0 or more");
    if (o.kv_bytes > 0) host.kv_bytes = o.kv_bytes;
    *decoder = new hw_decoder(path, host, o.threads);
  });
}

void hw_decoder_free(hw_decoder* decoder) { delete decoder; }

hw_status hw_decoder_generate(hw_decoder* decoder, const char* prompt, const hw_generate_options* options,
                              hw_text_callback callback, void* user, int32_t* finish) {
  constexpr const char* kEntry = "hw_decoder_generate";
  return c::guarded(kEntry, [&] {
    c::require_given(decoder, kEntry, "decoder");
    c::require_given(prompt, kEntry, "prompt");
    require(callback != nullptr, ErrorKind::bad_argument, kEntry, "callback is NULL; give a function");
    hw_generate_options o{};
    if (options != nullptr) o = c::sized_copy(options, kEntry, "options");
    const Busy busy(decoder->busy);
    DecoderHost& host = decoder->host;
    const RequestId id[] = {host.add(request_of(o, host.need_tokenizer(kEntry).encode(prompt), kEntry))};
    const Ended ended{host, id};
    for (Finish last = Finish::none; last == Finish::none;)
      for (const GenerateEvent& e : host.next(id, decoder->ctx)) {
        require(e.finish != Finish::error, ErrorKind::bad_argument, kEntry, e.error);
        last = e.finish;
        if (!e.text.empty() && callback(e.text.data(), e.text.size(), user) != 0) last = Finish::cancelled;
        if (last != Finish::none && finish != nullptr) *finish = finish_of(last);
      }
  });
}
