#include "headwise/server/http_service.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"
#include "headwise/server/http/request_id.h"

namespace headwise::server {
namespace {

enum class Shared : int { live = -4, ready, metrics, openapi };

constexpr HttpRoute kShared[] = {
    {"/health/live", "GET", static_cast<int>(Shared::live), Door::Lock::open, true},
    {"/health/ready", "GET", static_cast<int>(Shared::ready), Door::Lock::open, true},
    {"/metrics", "GET", static_cast<int>(Shared::metrics), Door::Lock::scrape},
    {"/openapi.json", "GET", static_cast<int>(Shared::openapi), Door::Lock::open},
};

HttpResponse health(bool ready, const std::string& name) {
  HttpResponse r;
  r.status = ready ? 200 : 503;
  r.body = text("{\"model\": ", name, ", \"status\": \"", ready ? "ok" : "draining", "\"}\n");
  return r;
}

/// A method of its own could hold anything too.
constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST",  "PUT",    "PATCH",
                                         "DELETE", "OPTIONS", "TRACE", "CONNECT"};

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

}  // namespace

std::string name_in_answers(std::string_view name) {
  const Index bad = first_bad_utf8(name);
  require(bad < 0, ErrorKind::bad_argument, "serve", "byte ", bad,
          " of the model's name is no UTF-8; rename its folder");
  return page_string(name);
}

HttpService::HttpService(std::span<const HttpRoute> routes, Listener& listener, const std::string& address,
                         HttpServiceOptions options)
    : routes_(with_shared(routes)),
      http_(std::move(options)),
      door_(http_.door, address, listener.port()),
      loop_(listener, *this, http_.loop) {}

std::vector<HttpRoute> HttpService::with_shared(std::span<const HttpRoute> own) {
  std::vector<HttpRoute> all(std::begin(kShared), std::end(kShared));
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

const HttpRoute* HttpService::find_route(std::string_view target) const {
  const auto found =
      std::find_if(routes_.begin(), routes_.end(), [&](const HttpRoute& r) { return r.path == target; });
  return found == routes_.end() ? nullptr : &*found;
}

std::optional<HttpResponse> HttpService::look(const HttpRequest& request, bool spare) {
  const HttpRoute* route = find_route(request.target);
  if (spare && (route == nullptr || !route->health))
    return refuse({503, "there are too many connections; come again later"});
  if (route != nullptr && !offers(*route)) route = nullptr;
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

std::optional<HttpResponse> HttpService::take(const HttpRequest& request, Ticket ticket,
                                              Clock::time_point& until) {
  const HttpRoute& route = *find_route(request.target);
  if (route.work >= 0) return take_own(route, request, ticket, until);
  switch (static_cast<Shared>(route.work)) {
    case Shared::live: return health(true, model_name());
    case Shared::ready: return health(!loop_.draining(), model_name());
    case Shared::metrics: return all_numbers();
    case Shared::openapi: break;
  }
  HttpResponse r;
  r.body = openapi();
  return r;
}

HttpResponse HttpService::numbers(Index queued_requests, Index queued_tokens) const {
  HttpResponse r;
  r.type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = metrics_.print({.connections = loop_.connections(),
                           .queued_requests = queued_requests,
                           .queued_tokens = queued_tokens,
                           .log_lines_lost = http_.log_lines_lost ? http_.log_lines_lost() : 0,
                           .ready = !loop_.draining()});
  return r;
}

HttpResponse HttpService::busy(std::chrono::milliseconds wait) {
  HttpResponse r = error_response(429, "busy", "the queue is full; come again after Retry-After seconds");
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(wait).count();
  r.headers.push_back({"Retry-After", std::to_string(std::clamp<long long>(seconds, 1, 60))});
  return r;
}

std::optional<std::chrono::milliseconds> HttpService::patience(const HttpRequest& request,
                                                               HttpResponse& refusal) const {
  const std::string* wish = request.find("headwise-deadline-ms");
  if (wish == nullptr) return http_.deadline;
  std::int64_t ms = 0;
  const auto [end, error] = std::from_chars(wish->data(), wish->data() + wish->size(), ms);
  if (error == std::errc() && end == wish->data() + wish->size() && ms >= 1)
    return std::min(http_.deadline, std::chrono::milliseconds(ms));
  refusal =
      error_response(400, "bad_deadline", "Headwise-Deadline-Ms is a whole number of milliseconds from 1 up");
  return std::nullopt;
}

HttpResponse HttpService::refuse(const HttpFault& fault) {
  HttpResponse r = error_response(fault.status, fault.status == 503 ? "busy" : "bad_http", fault.words);
  if (fault.status == 503) r.headers.push_back({"Retry-After", "1"});
  return r;
}

void HttpService::say(const LogLine& line) const {
  if (http_.log) http_.log(print(http_.log_format, line));
}

void HttpService::failed(const char* what) noexcept {
  metrics_.failed();
  try {
    say({.level = "error", .message = text("a connection is given up: ", what)});
  } catch (const std::exception&) {
    // No memory for the line either.
  }
}

void HttpService::sent(const Exchange& e) {
  // The client's own path could hold anything: one we do not know has no name here.
  const HttpRoute* route = find_route(e.request.target);
  const std::string name(route != nullptr ? route->path : "other");
  metrics_.answered(name, e.status, e.took);
  if (!http_.log_requests || !http_.log) return;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(e.took).count();
  const std::string ms = text(static_cast<double>(us) / 1e3), status = std::to_string(e.status);
  const bool known =
      std::find(std::begin(kMethods), std::end(kMethods), e.request.method) != std::end(kMethods);
  const std::string method = known ? e.request.method : "other", trace = trace_id(e.request);
  LogLine line;
  if (http_.log_format == LogFormat::text) {
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
