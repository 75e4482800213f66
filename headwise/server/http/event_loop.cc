#include "headwise/server/http/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>
#include <random>

#include "headwise/base/error.h"
#include "headwise/server/http/request_id.h"

namespace headwise::server {
namespace {

using Phase = Connection::Phase;
using Stage = HttpParser::Stage;

constexpr std::uint64_t kListener = 0, kAlarm = 1;
constexpr Index kSpareSeats = 64;  // above the limit: asked about health, or told that all seats are taken
constexpr std::chrono::milliseconds kTick{20};

void watch_first(int epoll, int fd, std::uint64_t id) {
  epoll_event e{};
  e.events = EPOLLIN, e.data.u64 = id;
  require(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0, ErrorKind::device, "serve",
          "epoll refused a descriptor");
}

/// Under overload most of a loop's work is refusing; whoever it runs beside on one CPU comes first.
void be_nice(int niceness) {
  const auto self = static_cast<id_t>(::syscall(SYS_gettid));
  const int now = ::getpriority(PRIO_PROCESS, self);
  if (niceness > 0) ::setpriority(PRIO_PROCESS, self, now + niceness);
}

}  // namespace

EventLoop::EventLoop(Listener& listener, Handler& handler, const LoopLimits& limits)
    : listener_(listener),
      handler_(handler),
      limits_(limits),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_number_(std::uint64_t{std::random_device{}()} << 24) {
  // Else a body its own limit allows would never be read.
  limits_.bodies_bytes = max_of(limits_.bodies_bytes, limits_.http.body_bytes);
  require(epoll_ >= 0 && wake_ >= 0, ErrorKind::device, "serve",
          "the system gives no descriptor; close some");
}

EventLoop::~EventLoop() {
  connections_.clear();
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

void EventLoop::wake() const noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof one);  // full: it is awake anyway
}

void EventLoop::drain() noexcept {
  draining_.store(true);
  wake();
}

void EventLoop::answer(Ticket ticket, HttpResponse response) {
  {
    const std::lock_guard hold(lock_);
    answers_.push_back({ticket, std::move(response), std::nullopt});
  }
  wake();
}

void EventLoop::stream(Ticket ticket, HttpResponse response, Part part) {
  {
    const std::lock_guard hold(lock_);
    answers_.push_back({ticket, std::move(response), part});
  }
  wake();
}

/// Memory that runs out, or a handler that throws, costs the one connection it happened on.
template <class F>
void EventLoop::guarded(Connection& c, F&& work) noexcept {
  try {
    return work();
  } catch (const std::exception& e) {
    handler_.failed(e.what());
  } catch (...) {
    handler_.failed("an exception without words");
  }
  try {
    if (c.phase == Phase::waiting) handler_.gone({c.id, c.ticket});
    if (c.phase == Phase::waiting || c.phase == Phase::reading)
      respond(c, handler_.refuse({503, "the service is out of memory; come again later"}), false);
    else
      c.phase = Phase::gone;
    watch(c);
  } catch (...) {
    c.phase = Phase::gone;
  }
}

Index EventLoop::run() {
  be_nice(limits_.niceness);
  watch_first(epoll_, listener_.descriptor(), kListener);
  watch_first(epoll_, wake_, kAlarm);
  std::array<epoll_event, 64> events;
  auto tick = Clock::now() + kTick;
  while (!drain_begun_ || !connections_.empty()) {
    const int n =
        ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), static_cast<int>(kTick.count()));
    require(n >= 0 || errno == EINTR, ErrorKind::device, "serve", "epoll failed");
    now_ = Clock::now();
    for (int i = 0; i < n; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == kListener) {
        accept_some(64);
      } else if (id == kAlarm) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        guarded(*found->second,
                [&] { on_event(*found->second, events[static_cast<std::size_t>(i)].events); });
        reap(id);
      }
    }
    deliver();
    if (draining_.load() && !drain_begun_) begin_drain();
    if (now_ < tick) continue;
    tick = now_ + kTick;
    lose_patience();
    if (!drain_begun_ || now_ - drain_since_ <= limits_.drain) continue;
    Index cut = 0;
    for (const auto& [id, c] : connections_) {
      cut += c->phase == Phase::waiting || c->phase == Phase::writing || c->phase == Phase::streaming ||
             (c->phase == Phase::reading && !c->idle());
      if (c->phase == Phase::waiting || c->stream_open) handler_.gone({id, c->ticket});
    }
    connections_.clear(), groups_.clear();
    open_ = spares_ = 0;
    return cut;
  }
  return 0;
}

void EventLoop::accept_some(int most) {
  for (int i = 0; i < most; ++i) {
    try {
      Arrival arrival = listener_.accept();
      if (arrival.fd < 0) return;
      seat(std::move(arrival));
    } catch (const std::exception& e) {  // the arrival is closed
      handler_.failed(e.what());
    }
  }
}

Index EventLoop::count_of(const std::string& group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second;
}

/// Closes the connection that has been silent longest, of `group` ("": of the client that has most), or of
/// the spare seats. False: nobody is silent.
bool EventLoop::make_room(const std::string& group, bool spare) {
  const auto turn = [](const Connection& c) { return std::pair(c.since, c.id); };
  Connection* oldest = nullptr;
  Index most = 0;
  for (const auto& [id, c] : connections_) {
    if (c->spare != spare || !c->evictable() || (!group.empty() && c->group != group)) continue;
    const Index of_client = group.empty() && !spare ? count_of(c->group) : 0;
    const bool sooner =
        oldest == nullptr || of_client > most || (of_client == most && turn(*c) < turn(*oldest));
    if (sooner && !c->unheard()) oldest = c.get(), most = of_client;
  }
  if (oldest == nullptr) return false;
  oldest->phase = Phase::gone;
  reap(oldest->id);
  handler_.evicted();
  return true;
}

/// A client sits down where a seat is free or a silent one gives up its own; else on a spare seat, to ask
/// about health.
void EventLoop::seat(Arrival arrival) {
  const std::uint64_t id = next_id_++;
  const std::string group = arrival.group;
  const auto taken = [&] { return static_cast<Index>(connections_.size()) - spares_; };
  bool seated = count_of(group) < limits_.client_connections || make_room(group, false);
  seated = seated && (taken() < limits_.connections || make_room("", false));
  if (!seated && spares_ >= kSpareSeats && !make_room("", true)) return;  // closed
  Index& count = seated ? groups_[group] : spares_;
  auto owner = std::make_unique<Connection>(std::move(arrival), id, limits_.http, now_);
  epoll_event e{};
  e.data.u64 = id;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, owner->descriptor(), &e) != 0) return;  // closed
  Connection& c = *connections_.emplace(id, std::move(owner)).first->second;
  c.spare = !seated, c.ends_on_hangup = limits_.hangup_is_gone;
  ++count;
  guarded(c, [&] { watch(c); });
  reap(id);
}

void EventLoop::watch(Connection& c) {
  open_ = static_cast<Index>(connections_.size());
  const std::uint32_t wanted = c.interest();
  if (c.phase == Phase::gone || wanted == c.watched) return;
  epoll_event e{};
  e.events = wanted, e.data.u64 = c.id;
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, c.descriptor(), &e) != 0) c.phase = Phase::gone;
  c.watched = wanted;
}

/// Connections are erased here alone, when nobody holds them.
void EventLoop::reap(std::uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second->phase != Phase::gone) return;
  Connection& c = *found->second;
  if (std::exchange(c.stream_open, false)) handler_.gone({c.id, c.ticket});
  release(c);
  if (c.spare)
    --spares_;
  else if (const auto group = groups_.find(c.group); group != groups_.end() && --group->second <= 0)
    groups_.erase(group);
  connections_.erase(found);
  open_ = static_cast<Index>(connections_.size());
}

void EventLoop::release(Connection& c) { reserved_ -= std::exchange(c.reserved, 0); }

void EventLoop::on_event(Connection& c, std::uint32_t events) {
  const bool left = c.ends_on_hangup && (events & EPOLLRDHUP) != 0 &&
                    (c.phase == Phase::waiting || c.phase == Phase::streaming);
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 || left) {
    if (c.phase == Phase::waiting) handler_.gone({c.id, c.ticket});
    c.phase = Phase::gone;
    return;
  }
  if ((c.phase == Phase::writing || c.phase == Phase::streaming) && (events & EPOLLOUT) != 0) c.write(now_);
  if ((events & EPOLLIN) != 0 && (c.phase == Phase::reading || c.phase == Phase::leaving)) {
    const bool open = c.read();
    advance(c);
    if (!open && c.phase == Phase::reading) {
      // It may still listen: told only where it had begun to say something.
      if (c.idle())
        c.phase = Phase::gone;
      else
        respond(c, handler_.refuse({400, "the request ends before its length"}), false);
    }
  } else {
    advance(c);
  }
  watch(c);
}

/// Takes requests out of what was read, one after another, until one waits or more bytes are needed.
void EventLoop::advance(Connection& c) {
  while (c.phase == Phase::reading && !c.in.empty()) {
    if (!c.parser.begun()) c.since = now_;
    const Stage before = c.parser.stage();
    c.in.erase(0, c.parser.feed(c.in));
    const Stage stage = c.parser.stage();
    if (stage == Stage::failed) {
      respond(c, handler_.refuse(c.parser.fault()), false);
      continue;
    }
    if (before == Stage::head && stage != Stage::head && !head_done(c)) continue;
    if (stage != Stage::done) continue;
    release(c);
    c.since = now_;
    if (auto response = handler_.take(c.parser.request(), {c.id, c.ticket}, c.until))
      respond(c, std::move(*response), true);
    else
      c.phase = Phase::waiting;
  }
}

void EventLoop::respond(Connection& c, HttpResponse response, bool keep) {
  if (c.ticket == 0) c.ticket = next_number_++;  // refused before it had one
  std::string id = request_id(c.parser.request(), c.ticket);
  response.headers.push_back({"X-Request-Id", id});
  handler_.sent({c.parser.request(), c.client, std::move(id), response.status, now_ - c.since});
  c.ticket = 0;
  c.respond(response, keep && !c.spare && !draining(), now_);
}

/// False: refused.
bool EventLoop::head_done(Connection& c) {
  c.since = now_, c.ticket = next_number_++;
  const bool body = c.parser.stage() == Stage::body;
  // A refusal before its body came: reading on would only help who sends for nothing.
  if (auto refusal = handler_.look(c.parser.request(), c.spare)) {
    respond(c, std::move(*refusal), !body);
    return false;
  }
  if (body && !room_for_body(c)) {
    respond(c, handler_.refuse({503, "too many bodies are being read; come again later"}), false);
    return false;
  }
  if (body && c.parser.request().expects_continue && c.in.empty()) c.say_continue();
  return true;
}

bool EventLoop::room_for_body(Connection& c) {
  const HttpRequest& r = c.parser.request();
  const Index bytes = r.chunked ? limits_.http.body_bytes : r.length;
  if (reserved_ + bytes > limits_.bodies_bytes) return false;
  reserved_ += bytes, c.reserved = bytes;
  return true;
}

void EventLoop::deliver() {
  std::vector<Delivery> ready;
  {
    const std::lock_guard hold(lock_);
    ready.swap(answers_);
  }
  for (Delivery& d : ready) {
    const auto found = connections_.find(d.ticket.connection);
    if (found == connections_.end()) continue;
    Connection& c = *found->second;
    const bool begins = !d.part || *d.part == Part::first;
    if (c.phase != (begins ? Phase::waiting : Phase::streaming) || c.ticket != d.ticket.number) continue;
    guarded(c, [&] { deliver_one(c, d); });
    reap(d.ticket.connection);
  }
}

void EventLoop::deliver_one(Connection& c, Delivery& d) {
  if (!d.part) {
    respond(c, std::move(d.response), true);
  } else if (*d.part == Part::first) {
    std::string id = request_id(c.parser.request(), c.ticket);
    d.response.streamed = true;
    d.response.headers.push_back({"X-Request-Id", id});
    handler_.sent({c.parser.request(), c.client, std::move(id), d.response.status, now_ - c.since});
    c.begin_stream(d.response, !c.spare && !draining(), now_);
  } else if (!c.add_part(d.response.body, *d.part == Part::last, now_)) {
    c.phase = Phase::gone;
  } else if (*d.part == Part::last) {
    c.ticket = 0;
  }
  advance(c);
  watch(c);
}

void EventLoop::begin_drain() {
  drain_begun_ = true, drain_since_ = now_;
  accept_some(std::numeric_limits<int>::max());  // whom the kernel has let in already
  listener_.close();
}

void EventLoop::lose_patience() {
  const bool grace_over = drain_begun_ && now_ - drain_since_ > limits_.drain_grace;
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& c = *(at++)->second;  // reaping it leaves the next one where it is
    guarded(c, [&] {
      if (c.phase == Phase::waiting && now_ >= c.until) {
        respond(c, handler_.late({c.id, c.ticket}), true);
        advance(c);
      } else if (c.phase == Phase::streaming && now_ >= c.until) {
        c.phase = Phase::gone;  // whoever streams should have ended it
      } else if (grace_over && c.idle()) {
        c.phase = Phase::gone;
      } else if (const int status = c.tired(limits_.patience, now_)) {
        release(c);
        respond(c, handler_.refuse({status, "the request came too slowly"}), false);
      }
      watch(c);
    });
    reap(c.id);
  }
}

}  // namespace headwise::server
