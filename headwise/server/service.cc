#include "headwise/server/service.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"
#include "headwise/server/http/request_id.h"
#include "headwise/server/model/intents_openapi.h"
#include "headwise/server/try_page.h"

namespace headwise::server {
namespace {

enum class Work : int { labels, report, intents, explain, sentence };

/// What is not here or in http_service.cc is not there.
constexpr HttpRoute kRoutes[] = {
    route("/v1/labels", "GET", Work::labels, Door::Lock::bearer),
    route("/", "GET", Work::report, Door::Lock::password),
    route("/report", "GET", Work::report, Door::Lock::password),
    // The page itself holds nothing of the model; what it asks for needs the token.
    route("/try", "GET", Work::sentence, Door::Lock::open),
    route("/v1/intents", "POST", Work::intents, Door::Lock::bearer),
    route("/v1/explain", "POST", Work::explain, Door::Lock::bearer),
};

}  // namespace

Service::Facts Service::facts_of(const Served& model) {
  return {name_in_answers(model.name), model.about, static_cast<bool>(model.explain)};
}

Service::Facts Service::facts() const {
  const std::lock_guard hold(lock_);
  return facts_;
}

Service::Service(Served model, Listener& listener, const std::string& address, ServiceOptions options)
    : HttpService(kRoutes, listener, address, options),
      facts_(facts_of(model)),
      options_(std::move(options)),
      batcher_(std::move(model), options_.batcher, metrics_) {
  listener.listen();
}

std::vector<RouteName> Service::routes() {
  std::vector<RouteName> all;
  for (const HttpRoute& r : with_shared(kRoutes)) all.push_back({r.path, r.method});
  return all;
}

void Service::replace(Served model) {
  Facts next = facts_of(model);
  batcher_.replace(std::move(model));
  metrics_.reloaded(true);
  const std::lock_guard hold(lock_);
  facts_ = std::move(next);
}

bool Service::offers(const HttpRoute& route) const {
  if (route.work < 0) return true;
  const Work work = static_cast<Work>(route.work);
  return (work != Work::report || options_.report) && (work != Work::explain || facts().explains);
}

std::optional<HttpResponse> Service::take_own(const HttpRoute& route, const HttpRequest& request,
                                              Ticket ticket, Clock::time_point& until) {
  switch (static_cast<Work>(route.work)) {
    case Work::labels: return labels();
    case Work::report: return page(options_.report, "");
    case Work::sentence: {
      static const auto sentence = std::make_shared<const std::string>(try_page());
      return page(sentence, "connect-src 'self'; ");
    }
    case Work::intents: return ask(request, false, ticket, until);
    case Work::explain: break;
  }
  return ask(request, true, ticket, until);
}

HttpResponse Service::all_numbers() const {
  return numbers(batcher_.queued_requests(), batcher_.queued_tokens());
}

std::string Service::openapi() const {
  return openapi_text(
      intents_openapi(options_.texts, asks_for_token(),
                      {.report = static_cast<bool>(options_.report), .explain = facts().explains}));
}

HttpResponse Service::labels() const {
  const Facts f = facts();
  HttpResponse r;
  r.body = "{\"model\": " + f.name + ", " + f.about + "}\n";
  return r;
}

HttpResponse Service::page(std::shared_ptr<const std::string> words, const char* more) {
  HttpResponse r;
  r.type = "text/html; charset=utf-8";
  r.page = std::move(words);
  // The page holds all it needs; were a text of a user in it to become code, it could still reach nothing
  // but, where it asks, this service.
  r.headers.push_back(
      {"Content-Security-Policy",
       text("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; ",
            more, "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")});
  r.headers.push_back({"Referrer-Policy", "no-referrer"});
  return r;
}

std::optional<HttpResponse> Service::ask(const HttpRequest& request, bool explain, Ticket ticket,
                                         Clock::time_point& until) {
  if (batcher_.full()) return busy(batcher_.expected_wait());  // before anything is read of it
  HttpResponse refusal;
  const auto time = patience(request, refusal);
  if (!time) return refusal;
  TextsRequest asked = read_texts(request.body, options_.texts);
  if (asked.status != 200) return error_response(asked.status, asked.code, asked.message);
  if (explain && asked.texts.size() != 1)
    return error_response(400, "bad_request", "one text is explained at a time");
  until = Clock::now() + *time;
  Job job;
  job.id = ticket.number, job.explain = explain, job.texts = std::move(asked.texts), job.deadline = until;
  job.done = [this, ticket](const Outcome& outcome) { loop_.answer(ticket, answer_of(outcome)); };
  if (!batcher_.submit(job)) return busy(batcher_.expected_wait());
  return std::nullopt;
}

HttpResponse Service::answer_of(const Outcome& outcome) const {
  if (!outcome.detail.empty()) say({.level = "error", .message = "the model failed: " + outcome.detail});
  if (outcome.status != 200) return error_response(outcome.status, outcome.code, outcome.message);
  HttpResponse r;
  r.body = "{\"model\": " + page_string(outcome.model) + ", \"answers\": [";
  for (std::size_t i = 0; i < outcome.answers.size(); ++i)
    r.body += (i == 0 ? "" : ", ") + outcome.answers[i];
  r.body += "], \"tokens\": " + std::to_string(outcome.tokens) + "}\n";
  return r;
}

HttpResponse Service::late(Ticket ticket) {
  batcher_.cancel(ticket.number);
  return error_response(504, "too_late", "the answer was not ready in time");
}

void Service::gone(Ticket ticket) {
  batcher_.cancel(ticket.number);
  metrics_.vanished();
}

}  // namespace headwise::server
