#include "headwise/server/service.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"
#include "headwise/server/http/request_id.h"
#include "headwise/server/openapi.h"

namespace headwise::server {
namespace {

enum class Work { live, ready, metrics, openapi, labels, report, intents, explain };

struct Route {
  std::string_view path, method;
  Work work;
  Door::Lock lock;
};

/// What is not here is not there; paths are compared whole, none is ever looked up on a disk.
constexpr Route kRoutes[] = {
    {"/health/live", "GET", Work::live, Door::Lock::open},
    {"/health/ready", "GET", Work::ready, Door::Lock::open},
    {"/metrics", "GET", Work::metrics, Door::Lock::scrape},
    {"/openapi.json", "GET", Work::openapi, Door::Lock::open},
    {"/v1/labels", "GET", Work::labels, Door::Lock::bearer},
    {"/", "GET", Work::report, Door::Lock::password},
    {"/report", "GET", Work::report, Door::Lock::password},
    {"/v1/intents", "POST", Work::intents, Door::Lock::bearer},
    {"/v1/explain", "POST", Work::explain, Door::Lock::bearer},
};

/// A method of its own could hold anything too.
constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST",  "PUT",    "PATCH",
                                         "DELETE", "OPTIONS", "TRACE", "CONNECT"};

const Route* find_route(std::string_view target) {
  const auto found =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return r.path == target; });
  return found == std::end(kRoutes) ? nullptr : found;
}

bool is_json(std::string_view type) {
  constexpr std::string_view kJson = "application/json";
  if (type.size() < kJson.size()) return false;
  for (std::size_t i = 0; i < kJson.size(); ++i)
    if ((type[i] | 0x20) != (kJson[i] | 0x20)) return false;
  return type.size() == kJson.size() || type[kJson.size()] == ';' || type[kJson.size()] == ' ';
}

std::optional<HttpResponse> body_refusal(const HttpRequest& r) {
  if (!r.has_length) return error_response(411, "no_length", "send a body with its Content-Length");
  const std::string* type = r.find("content-type");
  if (type == nullptr || !is_json(*type))
    return error_response(415, "not_json", "send Content-Type: application/json");
  const std::string* coding = r.find("content-encoding");
  if (coding != nullptr && *coding != "identity")
    return error_response(415, "encoded", "send the body as it is, without Content-Encoding");
  return std::nullopt;
}

/// The name stands in every answer, and JSON is UTF-8.
std::string name_in_answers(std::string_view name) {
  const Index bad = first_bad_utf8(name);
  require(bad < 0, ErrorKind::bad_argument, "serve", "byte ", bad,
          " of the model's name is no UTF-8; rename its folder");
  return page_string(name);
}

}  // namespace

Service::Facts Service::facts_of(const Served& model) {
  return {name_in_answers(model.name), model.about, static_cast<bool>(model.explain)};
}

Service::Facts Service::facts() const {
  const std::lock_guard hold(lock_);
  return facts_;
}

Service::Service(Served model, Listener& listener, const std::string& address, ServiceOptions options)
    : facts_(facts_of(model)),
      options_(std::move(options)),
      door_(options_.door, address, listener.port()),
      loop_(listener, *this, options_.loop),
      batcher_(std::move(model), options_.batcher, metrics_) {
  listener.listen();
}

std::vector<RouteName> Service::routes() {
  std::vector<RouteName> all;
  for (const Route& r : kRoutes) all.push_back({r.path, r.method});
  return all;
}

void Service::replace(Served model) {
  Facts next = facts_of(model);
  batcher_.replace(std::move(model));
  metrics_.reloaded(true);
  const std::lock_guard hold(lock_);
  facts_ = std::move(next);
}

std::optional<HttpResponse> Service::look(const HttpRequest& request, bool spare) {
  const Route* route = find_route(request.target);
  if (spare && (route == nullptr || (route->work != Work::live && route->work != Work::ready)))
    return refuse({503, "there are too many connections; come again later"});
  if (route != nullptr && ((route->work == Work::report && !options_.report) ||
                           (route->work == Work::explain && !facts().explains)))
    route = nullptr;
  if (auto refusal = door_.refusal(request, route != nullptr ? route->lock : Door::Lock::bearer))
    return refusal;
  if (route == nullptr) return error_response(404, "no_route", "there is no such route; see docs/serve.md");
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  if (method != route->method) {
    HttpResponse r = error_response(405, "wrong_method", text("this route takes ", route->method));
    r.headers.push_back({"Allow", std::string(route->method)});
    return r;
  }
  return method == "POST" ? body_refusal(request) : std::nullopt;
}

std::optional<HttpResponse> Service::take(const HttpRequest& request, Ticket ticket,
                                          Clock::time_point& until) {
  switch (find_route(request.target)->work) {
    case Work::live: return health(true);
    case Work::ready: return health(!loop_.draining());
    case Work::metrics: return numbers();
    case Work::labels: return labels();
    case Work::report: return page();
    case Work::intents: return ask(request, false, ticket, until);
    case Work::explain: return ask(request, true, ticket, until);
    case Work::openapi: break;
  }
  HttpResponse r;
  r.body = openapi_text({.texts = options_.texts.texts,
                         .text_bytes = options_.texts.text_bytes,
                         .token = !options_.door.tokens.empty()});
  return r;
}

HttpResponse Service::numbers() const {
  HttpResponse r;
  r.type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = metrics_.print({.connections = loop_.connections(),
                           .queued_requests = batcher_.queued_requests(),
                           .queued_tokens = batcher_.queued_tokens(),
                           .log_lines_lost = options_.log_lines_lost ? options_.log_lines_lost() : 0,
                           .ready = !loop_.draining()});
  return r;
}

HttpResponse Service::labels() const {
  const Facts f = facts();
  HttpResponse r;
  r.body = "{\"model\": " + f.name + ", " + f.about + "}\n";
  return r;
}

HttpResponse Service::health(bool ready) const {
  HttpResponse r;
  r.status = ready ? 200 : 503;
  r.body = text("{\"model\": ", facts().name, ", \"status\": \"", ready ? "ok" : "draining", "\"}\n");
  return r;
}

HttpResponse Service::page() const {
  HttpResponse r;
  r.type = "text/html; charset=utf-8";
  r.page = options_.report;
  // The page holds all it needs; were a text of a user in it to become code, it could still reach nothing.
  r.headers.push_back(
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"});
  r.headers.push_back({"Referrer-Policy", "no-referrer"});
  return r;
}

HttpResponse Service::busy() const {
  HttpResponse r = error_response(429, "busy", "the queue is full; come again after Retry-After seconds");
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(batcher_.expected_wait()).count();
  r.headers.push_back({"Retry-After", std::to_string(std::clamp<long long>(seconds, 1, 60))});
  return r;
}

std::optional<HttpResponse> Service::ask(const HttpRequest& request, bool explain, Ticket ticket,
                                         Clock::time_point& until) {
  if (batcher_.full()) return busy();  // before anything is read of it
  auto patience = options_.deadline;
  if (const std::string* wish = request.find("headwise-deadline-ms")) {
    std::int64_t ms = 0;
    const auto [end, error] = std::from_chars(wish->data(), wish->data() + wish->size(), ms);
    if (error != std::errc() || end != wish->data() + wish->size() || ms < 1)
      return error_response(400, "bad_deadline",
                            "Headwise-Deadline-Ms is a whole number of milliseconds from 1 up");
    patience = std::min(patience, std::chrono::milliseconds(ms));
  }
  TextsRequest asked = read_texts(request.body, options_.texts);
  if (asked.status != 200) return error_response(asked.status, asked.code, asked.message);
  if (explain && asked.texts.size() != 1)
    return error_response(400, "bad_request", "one text is explained at a time");
  until = Clock::now() + patience;
  Job job;
  job.id = ticket.number, job.explain = explain, job.texts = std::move(asked.texts), job.deadline = until;
  job.done = [this, ticket](const Outcome& outcome) { loop_.answer(ticket, answer_of(outcome)); };
  if (!batcher_.submit(job)) return busy();
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

HttpResponse Service::refuse(const HttpFault& fault) {
  HttpResponse r = error_response(fault.status, fault.status == 503 ? "busy" : "bad_http", fault.words);
  if (fault.status == 503) r.headers.push_back({"Retry-After", "1"});
  return r;
}

void Service::say(const LogLine& line) const {
  if (options_.log) options_.log(print(options_.log_format, line));
}

void Service::failed(const char* what) noexcept {
  metrics_.failed();
  try {
    say({.level = "error", .message = text("a connection is given up: ", what)});
  } catch (const std::exception&) {
    // No memory for the line either.
  }
}

void Service::sent(const Exchange& e) {
  // The client's own path could hold anything: one we do not know has no name here.
  const Route* route = find_route(e.request.target);
  const std::string name(route != nullptr ? route->path : "other");
  metrics_.answered(name, e.status, e.took);
  if (!options_.log_requests || !options_.log) return;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(e.took).count();
  const std::string ms = text(static_cast<double>(us) / 1e3), status = std::to_string(e.status);
  const bool known =
      std::find(std::begin(kMethods), std::end(kMethods), e.request.method) != std::end(kMethods);
  const std::string method = known ? e.request.method : "other", trace = trace_id(e.request);
  LogLine line;
  if (options_.log_format == LogFormat::text) {
    line.message =
        text("request ", e.id, " ", method, " ", name, " ", status, " ", ms, " ms from ", e.client);
  } else {
    line.message = "request";
    line.values = {{"request", e.id}, {"client", e.client},     {"method", method},
                   {"route", name},   {"status", status, true}, {"ms", ms, true}};
  }
  if (!trace.empty()) line.values.push_back({"trace", trace});
  say(line);
}

}  // namespace headwise::server
