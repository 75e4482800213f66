// Connection: one client's socket with what was read, what is to be written, and how long it may still take.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "headwise/server/clock.h"
#include "headwise/server/http/http_parser.h"
#include "headwise/server/http/http_response.h"
#include "headwise/server/http/listener.h"

namespace headwise::server {

/// How long a client may take. Rates are held after `grace`: a client slower than that is no client.
struct Patience {
  std::chrono::milliseconds head{10'000};    // from the first byte of a request to the end of its headers
  std::chrono::milliseconds body{30'000};    // from there to the end of its body
  std::chrono::milliseconds idle{60'000};    // between requests
  std::chrono::milliseconds grace{5'000};    // before rates count
  std::chrono::milliseconds leaving{1'000};  // for a client to hear a refusal and go
  std::chrono::milliseconds spare{1'000};    // for a whole request on a seat above the limit
  Index least_rate = 1024;                   // bytes a second, of bodies and of answers
};

class Connection {
 public:
  enum class Phase {
    reading,    // a request, or idle before one
    waiting,    // the model has it
    writing,    // the answer goes out
    streaming,  // its beginning went out, and more of it comes
    leaving,    // the answer is out, our side is closed; what the client still sends is thrown away
    gone
  };
  Connection(Arrival arrival, std::uint64_t number, const HttpLimits& limits, Clock::time_point now)
      : id(number),
        client(std::move(arrival.client)),
        group(std::move(arrival.group)),
        parser(limits),
        since(now),
        fd_(arrival.take()) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  /// Reads once into `in`, or throws bytes away when leaving. False: the client closed its side.
  bool read();
  /// The answer goes out as far as the socket takes it; then reading again, or leaving.
  void write(Clock::time_point now);
  void respond(const HttpResponse& response, bool keep, Clock::time_point now);
  /// Head and first part of an answer whose length is not known.
  void begin_stream(const HttpResponse& response, bool keep, Clock::time_point now);
  /// The next part; false: the client reads so slowly that too much waits.
  bool add_part(std::string_view bytes, bool last, Clock::time_point now);
  void say_continue();
  /// What patience says: nothing, or the status of the refusal (408), or gone.
  int tired(const Patience& patience, Clock::time_point now);

  bool idle() const { return phase == Phase::reading && !parser.begun(); }
  /// Whether it may be closed for another one: it has asked nothing, or was answered and told to go.
  bool evictable() const {
    return phase == Phase::leaving || (phase == Phase::reading && parser.stage() == HttpParser::Stage::head);
  }
  /// Bytes of a question lie in the socket: it is the service that has not read them yet.
  bool unheard() const;
  int descriptor() const { return fd_; }
  /// What epoll should watch for.
  std::uint32_t interest() const;

  const std::uint64_t id;
  const std::string client, group;  // see Arrival
  bool spare = false;               // above the limit: for one question about health, and for a short time
  Phase phase = Phase::reading;
  HttpParser parser;
  std::string in;               // read and not yet parsed
  Clock::time_point since;      // of the phase, or of the part of a request
  Clock::time_point until;      // waiting: when the client is told that it was too long
  std::uint64_t ticket = 0;     // waiting: whose answer
  Index reserved = 0;           // bytes its body may take
  std::uint32_t watched = 0;    // what epoll watches for now
  bool ends_on_hangup = false;  // waiting or streaming: a client that closed its side is gone
  bool stream_open = false;     // a stream has begun and not ended

 private:
  bool slow(Index bytes, const Patience& patience, Clock::time_point now) const;
  void append_part(std::string_view bytes, bool last);

  int fd_;
  std::string out_;
  std::shared_ptr<const std::string> page_;
  std::size_t sent_ = 0, thrown_ = 0;
  bool keep_ = false, chunked_ = false;
};

}  // namespace headwise::server
