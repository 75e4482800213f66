#include "headwise/server/completions/decoder_service.h"

#include <ctime>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"
#include "headwise/server/completions/completions_openapi.h"

namespace headwise::server {
namespace {

enum class Work : int { models, completions, chat, heads };

constexpr HttpRoute kRoutes[] = {
    route("/v1/models", "GET", Work::models, Door::Lock::bearer),
    route("/v1/completions", "POST", Work::completions, Door::Lock::bearer),
    route("/v1/chat/completions", "POST", Work::chat, Door::Lock::bearer),
    route("/v1/heads", "POST", Work::heads, Door::Lock::bearer),
};

/// The worker ends what is late; the loop's own clock stands behind it, for a step that hangs.
constexpr std::chrono::milliseconds kBehind{5'000};

}  // namespace

DecoderServiceOptions DecoderService::with_hangups(DecoderServiceOptions options) {
  options.loop.hangup_is_gone = true;
  return options;
}

DecoderService::DecoderService(std::unique_ptr<DecoderHost> host, const std::string& name, Listener& listener,
                               const std::string& address, DecoderServiceOptions options)
    : HttpService(kRoutes, listener, address, with_hangups(options)),
      name_(name_in_answers(name)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      worker_(std::move(host), name, options.threads, options.worker) {
  listener.listen();
}

std::optional<HttpResponse> DecoderService::take_own(const HttpRoute& route, const HttpRequest& request,
                                                     Ticket ticket, Clock::time_point& until) {
  switch (static_cast<Work>(route.work)) {
    case Work::models: return models();
    case Work::completions: return ask(request, CompletionKind::text, ticket, until);
    case Work::chat: return ask(request, CompletionKind::chat, ticket, until);
    case Work::heads: break;
  }
  return ask(request, CompletionKind::heads, ticket, until);
}

std::string DecoderService::openapi() const {
  return openapi_text(completions_openapi(worker_.context(), asks_for_token()));
}

HttpResponse DecoderService::models() const {
  HttpResponse r;
  r.body = text("{\"object\": \"list\", \"data\": [{\"id\": ", name_,
                ", \"object\": \"model\", \"created\": ", created_, ", \"owned_by\": \"headwise\"}]}\n");
  return r;
}

HttpResponse DecoderService::all_numbers() const {
  const DecoderCounts c = worker_.counts();
  HttpResponse r = numbers(c.requests, 0);
  const auto line = [&](std::string_view name, std::string_view kind, Index value) {
    r.body +=
        text("# TYPE headwise_decoder_", name, " ", kind, "\nheadwise_decoder_", name, " ", value, "\n");
  };
  line("requests", "gauge", c.requests);
  line("steps_total", "counter", c.generator.steps);
  line("rows_total", "counter", c.generator.rows);
  line("tokens_drawn_total", "counter", c.generator.drawn);
  line("tokens_adopted_total", "counter", c.generator.adopted);
  line("preemptions_total", "counter", c.generator.preemptions);
  line("pages_free", "gauge", c.cache.free);
  line("pages_held", "gauge", c.cache.held);
  line("pages_in_tree", "gauge", c.cache.in_tree);
  return r;
}

std::optional<HttpResponse> DecoderService::ask(const HttpRequest& request, CompletionKind kind,
                                                Ticket ticket, Clock::time_point& until) {
  HttpResponse refusal;
  const auto time = patience(request, refusal);
  if (!time) return refusal;
  if (const Index bad = first_bad_utf8(request.body); bad >= 0)
    return error_response(400, "not_utf8", text("byte ", bad, " of the body is no UTF-8"));
  DecoderJob job;
  job.id = ticket.number, job.kind = kind, job.body = request.body, job.deadline = Clock::now() + *time;
  job.reply = [this, ticket](HttpResponse response, std::optional<EventLoop::Part> part) {
    if (part)
      loop_.stream(ticket, std::move(response), *part);
    else
      loop_.answer(ticket, std::move(response));
  };
  until = job.deadline + kBehind;
  if (!worker_.submit(job)) return busy(std::chrono::milliseconds(1000));
  return std::nullopt;
}

HttpResponse DecoderService::late(Ticket ticket) {
  worker_.cancel(ticket.number);
  return error_response(504, "too_late", "the answer was not ready in time");
}

void DecoderService::gone(Ticket ticket) {
  worker_.cancel(ticket.number);
  metrics_.vanished();
}

}  // namespace headwise::server
