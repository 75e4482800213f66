#include "headwise/server/view/map_service.h"

#include <algorithm>
#include <cmath>

#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/error.h"

namespace headwise::server {
namespace {

enum Work : int {
  page_work,
  about_work,
  open_work,
  tile_work,
  numbers_work,
  line_work,
  sums_work,
  tokens_work,
  find_work
};

constexpr HttpRoute kRoutes[] = {
    {.path = "/", .method = "GET", .work = page_work, .lock = Door::Lock::open},
    {.path = "/page", .method = "GET", .work = page_work, .lock = Door::Lock::password},
    {.path = "/map/about", .method = "GET", .work = about_work},
    {.path = "/map/open", .method = "POST", .work = open_work},
    {.path = "/map/tile", .method = "POST", .work = tile_work},
    {.path = "/map/numbers", .method = "POST", .work = numbers_work},
    {.path = "/map/line", .method = "POST", .work = line_work},
    {.path = "/map/sums", .method = "POST", .work = sums_work},
    {.path = "/map/tokens", .method = "POST", .work = tokens_work},
    {.path = "/map/find", .method = "POST", .work = find_work},
};

constexpr Index kMostNumbers = 128, kMostTokens = 2000, kBins = 1024, kTop = 24, kFound = 500;
constexpr Index kTokenChars = 60, kMost = Index{1} << 40;

HttpResponse json(std::string body) {
  HttpResponse r;
  r.body = std::move(body);
  return r;
}

/// Codes and numbers as they lie in memory, little-endian.
HttpResponse binary(std::string body) {
  HttpResponse r;
  r.type = "application/octet-stream", r.body = std::move(body);
  return r;
}

std::string list_of(std::span<const float> numbers) {
  std::string out;
  for (const float x : numbers) out += (out.empty() ? "" : ",") + json_number(x);
  return "[" + out + "]";
}

/// The largest of each stretch, at most kBins of them.
std::vector<float> binned(const std::vector<float>& all) {
  const Index n = static_cast<Index>(all.size()), bins = std::min(kBins, n);
  std::vector<float> out(static_cast<std::size_t>(bins), 0.0f);
  for (Index i = 0; i < n; ++i) {
    float& bin = out[static_cast<std::size_t>(i * bins / n)];
    bin = std::max(bin, all[static_cast<std::size_t>(i)]);
  }
  return out;
}

std::string token_of(const std::function<std::string(Index)>& tokens, Index i) {
  return page_string(tokens ? shown(tokens(i), kTokenChars) : std::to_string(i));
}

}  // namespace

MapService::MapService(std::shared_ptr<const std::string> page, std::unique_ptr<DeepMap> map,
                       Listener& listener, const std::string& address, HttpServiceOptions options)
    : HttpService(kRoutes, listener, address, std::move(options)),
      page_(std::move(page)),
      map_(std::move(map)),
      worker_([this] { work(); }) {
  listener.listen();
}

MapService::~MapService() {
  {
    const std::lock_guard guard(lock_);
    ending_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

bool MapService::offers(const HttpRoute& route) const {
  if (route.work < 0) return false;  // shared ones: a page has nobody who watches it
  return route.work == page_work ? (route.path == "/") == (map_ != nullptr) : map_ != nullptr;
}

std::optional<HttpResponse> MapService::take_own(const HttpRoute& route, const HttpRequest& request,
                                                 Ticket ticket, Clock::time_point& until) {
  if (route.work == page_work) {
    HttpResponse r;
    r.type = "text/html; charset=utf-8", r.page = page_;
    return r;
  }
  if (route.work == about_work) return about();
  until = Clock::now() + http_.deadline;
  const std::lock_guard guard(lock_);
  jobs_.push_back({ticket, route.work, request.body});
  changed_.notify_one();
  return std::nullopt;
}

HttpResponse MapService::late(Ticket ticket) {
  gone(ticket);
  return error_response(504, "late", "the answer took too long; look at fewer tokens at once");
}

void MapService::gone(Ticket ticket) {
  const std::lock_guard guard(lock_);
  std::erase_if(jobs_, [&](const Job& j) {
    return j.ticket.number == ticket.number && j.ticket.connection == ticket.connection;
  });
}

/// What was asked for last comes first: whoever moves on wants the tiles that are in sight now.
void MapService::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock guard(lock_);
      changed_.wait(guard, [&] { return ending_ || !jobs_.empty(); });
      if (ending_) return;
      job = std::move(jobs_.back());
      jobs_.pop_back();
    }
    HttpResponse r;
    try {
      r = answer(job);
    } catch (const Error& e) {
      r = error_response(400, "bad_request", e.what());
    } catch (const std::exception& e) {
      r = error_response(500, "failed", e.what());
    }
    loop_.answer(job.ticket, std::move(r));
  }
}

HttpResponse MapService::answer(const Job& job) {
  const JsonObject ask(job.body, "view");
  if (job.work == tokens_work) return tokens(ask);
  if (job.work == find_work) return found(ask);
  const Index layer = ask.integer("layer", 0, kMost), head = ask.integer("head", 0, kMost);
  switch (job.work) {
    case open_work: return opened(layer, head);
    case tile_work: return tile(ask, layer, head);
    case numbers_work: return numbers(ask, layer, head);
    case line_work: return line(ask, layer, head);
    default: return sums(layer, head);
  }
}

HttpResponse MapService::about() const {
  const QkSource& s = map_->source();
  std::string layers;
  for (const QkLayer& l : s.layers) layers += (layers.empty() ? "" : ",") + std::to_string(l.number);
  return json(text("{\"name\":", page_string(shown(s.name, 120)), ",\"layers\":[", layers,
                   "],\"heads\":", s.heads, ",\"queries\":", s.q_tokens, ",\"keys\":", s.kv_tokens,
                   ",\"dim\":", s.head_dim, ",\"start\":", s.terms.q_start,
                   ",\"block\":", map_->largest_block(), ",\"mask\":", page_string(to_text(s.terms.mask)),
                   ",\"lse\":", s.layers[0].lse ? "true" : "false", "}"));
}

HttpResponse MapService::opened(Index layer, Index head) {
  map_->open(layer, head);
  const DeepMap::Progress p = map_->progress(layer, head);
  return json(text("{\"bands\":", p.bands, ",\"done\":", p.done,
                   ",\"seconds\":", json_number(static_cast<float>(p.seconds)),
                   ",\"exact\":", p.exact ? "true" : "false", "}"));
}

/// A byte of state, then the codes of the largest and of the mean weights.
HttpResponse MapService::tile(const JsonObject& ask, Index layer, Index head) {
  const DeepTile t = map_->tile(
      layer, head,
      {ask.integer("block", 1, kMost), ask.integer("row", 0, kMost), ask.integer("column", 0, kMost)});
  std::string body(1, static_cast<char>(t.state));
  body.append(t.max.begin(), t.max.end()).append(t.mean.begin(), t.mean.end());
  return binary(std::move(body));
}

HttpResponse MapService::numbers(const JsonObject& ask, Index layer, Index head) {
  const Index row = ask.integer("row", 0, kMost), column = ask.integer("column", 0, kMost);
  const Index rows = ask.integer("rows", 1, kMostNumbers), columns = ask.integer("columns", 1, kMostNumbers);
  const std::vector<float> w = map_->weights(layer, head, {row, rows}, column, column + columns);
  return binary({reinterpret_cast<const char*>(w.data()), w.size() * sizeof(float)});
}

HttpResponse MapService::line(const JsonObject& ask, Index layer, Index head) {
  const bool is_row = ask.has("row");
  const DeepLine l = is_row ? map_->row_line(layer, head, ask.integer("row", 0, kMost), kBins, kTop)
                            : map_->column_line(layer, head, ask.integer("column", 0, kMost), kBins, kTop);
  if (!l.ready) return json("{\"ready\":false}");
  const QkSource& s = map_->source();
  std::string top;
  for (const auto& [place, w] : l.top)
    top += text(top.empty() ? "[" : ",[", place, ",", json_number(w), ",",
                token_of(is_row ? s.key_token : s.query_token, place), "]");
  return json(text("{\"ready\":true,\"sum\":", json_number(static_cast<float>(l.sum)),
                   ",\"bins\":", list_of(l.bins), ",\"top\":[", top, "]}"));
}

HttpResponse MapService::sums(Index layer, Index head) {
  const std::vector<float> back = map_->by_distance(layer, head), keys = map_->column_sums(layer, head);
  if (back.empty()) return json("{\"ready\":false}");
  const std::size_t near = std::min<std::size_t>(back.size(), 16);
  return json(text("{\"ready\":true,\"near\":", list_of(std::span(back).first(near)),
                   ",\"distance\":", list_of(binned(back)), ",\"keys\":", list_of(binned(keys)), "}"));
}

HttpResponse MapService::tokens(const JsonObject& ask) const {
  const QkSource& s = map_->source();
  const bool keys = ask.word("side", "keys") == "keys";
  const Index all = keys ? s.kv_tokens : s.q_tokens, from = ask.integer("from", 0, all),
              count = ask.integer("count", 0, kMostTokens);
  std::string out;
  for (Index i = from; i < std::min(all, from + count); ++i)
    out += (out.empty() ? "" : ",") + token_of(keys ? s.key_token : s.query_token, i);
  return json(text("{\"from\":", from, ",\"tokens\":[", out, "]}"));
}

HttpResponse MapService::found(const JsonObject& ask) const {
  const QkSource& s = map_->source();
  const std::string what = lowered(ask.word("find"));
  std::string out;
  Index n = 0;
  for (Index i = 0; s.key_token && !what.empty() && i < s.kv_tokens && n < kFound; ++i)
    if (lowered(s.key_token(i)).find(what) != std::string::npos) out += (n++ ? "," : "") + std::to_string(i);
  return json(text("{\"places\":[", out, "]}"));
}

}  // namespace headwise::server
