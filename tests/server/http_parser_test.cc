// The parser over a table of requests, good and bad, each whole, byte by byte and cut at every place.
#include "headwise/server/http/http_parser.h"

#include <gtest/gtest.h>

#include <string>

namespace headwise::server {
namespace {

struct Result {
  HttpParser::Stage stage;
  int status;
  std::string body;
  std::size_t taken;
  bool operator==(const Result&) const = default;
};

HttpLimits small() {
  return {.line_bytes = 64, .head_bytes = 256, .headers = 5, .body_bytes = 32, .chunks = 4};
}

/// Feeds pieces that end where `cut` says, then the rest in pieces of `step`.
Result parse(std::string_view bytes, std::size_t cut, std::size_t step, const HttpLimits& limits = small()) {
  HttpParser p(limits);
  std::size_t taken = 0;
  const auto feed = [&](std::string_view piece) {
    while (!piece.empty() && p.stage() != HttpParser::Stage::done && p.stage() != HttpParser::Stage::failed) {
      const std::size_t n = p.feed(piece);
      taken += n;
      piece.remove_prefix(n);
    }
  };
  feed(bytes.substr(0, cut));
  for (std::size_t at = cut; at < bytes.size(); at += step) feed(bytes.substr(at, step));
  return {p.stage(), p.fault().status, p.request().body, taken};
}

/// The same however it is cut; a refusal needs no more bytes than it needs, so there `taken` may differ.
Result parsed(const std::string& bytes, const HttpLimits& limits = small()) {
  const Result whole = parse(bytes, bytes.size(), 1, limits);
  Result single = parse(bytes, 0, 1, limits);
  if (whole.stage == HttpParser::Stage::failed) single.taken = whole.taken;
  EXPECT_EQ(whole, single) << bytes;
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Result r = parse(bytes, cut, bytes.size(), limits);
    if (whole.stage == HttpParser::Stage::failed) r.taken = whole.taken;
    EXPECT_EQ(whole, r) << bytes << " cut at " << cut;
  }
  return whole;
}

const std::string kHost = "Host: a\r\n";

TEST(HttpParser, TakesWhatIsRight) {
  const struct {
    std::string bytes, body;
  } cases[] = {
      {"GET / HTTP/1.1\r\n" + kHost + "\r\n", ""},
      {"\r\nGET / HTTP/1.1\r\n" + kHost + "\r\n", ""},
      {"GET /a/b?c=%20d HTTP/1.0\r\n" + kHost + "\r\n", ""},
      {"GET / HTTP/1.0\r\n\r\n", ""},
      {"POST / HTTP/1.1\r\n" + kHost + "Content-Length: 0\r\n\r\n", ""},
      {"POST / HTTP/1.1\r\n" + kHost + "content-LENGTH:\t 5 \t\r\n\r\nhello", "hello"},
      {"POST / HTTP/1.1\r\n" + kHost + "Content-Length: 32\r\n\r\n" + std::string(32, 'x'),
       std::string(32, 'x')},
      {"POST / HTTP/1.1\r\n" + kHost + "Content-Length: 2\r\n\r\n\r\n", "\r\n"},
      {"POST / HTTP/1.1\r\n" + kHost + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""},
      {"POST / HTTP/1.1\r\n" + kHost +
           "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00A\r\n0123456789\r\n0\r\n\r\n",
       "abc0123456789"},
      {"POST / HTTP/1.1\r\n" + kHost + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\n!", "!"},
      {"GET / HTTP/1.1\r\n" + kHost + "X: \xe4\xb8\xad\r\nY:\r\n\r\n", ""},
  };
  for (const auto& c : cases)
    EXPECT_EQ(parsed(c.bytes), (Result{HttpParser::Stage::done, 0, c.body, c.bytes.size()})) << c.bytes;
}

TEST(HttpParser, RefusesWhatCouldBeReadInTwoWays) {
  const std::string post = "POST / HTTP/1.1\r\n" + kHost,
                    chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      // The line.
      {"GET / HTTP/1.1\n" + kHost + "\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\n", 400},
      {"GET / HTTP/1.1 \r\n", 400},
      {"GET / a HTTP/1.1\r\n", 400},
      {" GET / HTTP/1.1\r\n", 400},
      {"get / HTTP/1.1\r\n", 400},
      {"G@T / HTTP/1.1\r\n", 400},
      {"ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\n", 400},
      {"GET http://a/ HTTP/1.1\r\n", 400},
      {"CONNECT a:80 HTTP/1.1\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\n", 400},
      {"GET /# HTTP/1.1\r\n", 400},
      {"GET /\xe4 HTTP/1.1\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n", 17), 400},
      {"GET /\tHTTP/1.1\r\n", 400},
      {"GET / http/1.1\r\n", 400},
      {"GET / HTTP/1.10\r\n", 400},
      {"GET / HTTP/2.0\r\n", 505},
      {"GET / HTTP/0.9\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET /" + std::string(64, 'a') + " HTTP/1.1\r\n", 414},
      {"\r\n\r\nGET / HTTP/1.1\r\n", 400},
      {"\x16\x03\x01", 400},
      // The headers.
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost:\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + kHost + kHost + "\r\n", 400},
      {"GET / HTTP/1.1\r\nHost : a\r\n", 400},
      {"GET / HTTP/1.1\r\n: a\r\n", 400},
      {"GET / HTTP/1.1\r\nHost\r\n", 400},
      {"GET / HTTP/1.1\r\nHo st: a\r\n", 400},
      {"GET / HTTP/1.1\r\n" + kHost + " b\r\n", 400},
      {"GET / HTTP/1.1\r\n Host: a\r\n", 400},
      {"GET / HTTP/1.1\r\n" + kHost + "X: a\rb\r\n", 400},
      {"GET / HTTP/1.1\r\n" + kHost + "X: a\n\r\n", 400},
      {std::string("GET / HTTP/1.1\r\nX: a\0b\r\n", 24), 400},
      {"GET / HTTP/1.1\r\nX: \x7f\r\n", 400},
      {"GET / HTTP/1.1\r\nA:\r\nB:\r\nC:\r\nD:\r\nE:\r\nF:\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\nA: " + std::string(256, 'a'), 431},
      {"GET / HTTP/1.1\r\n" + kHost + "Authorization: a\r\nauthorization: b\r\n", 400},
      {post + "Expect: 200-ok\r\n\r\n", 417},
      // The lengths.
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {post + "Content-Length: +3\r\n\r\nabc", 400},
      {post + "Content-Length: -3\r\n\r\n", 400},
      {post + "Content-Length: 0x3\r\n\r\n", 400},
      {post + "Content-Length: 3 3\r\n\r\n", 400},
      {post + "Content-Length:\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 33\r\n\r\n", 413},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {post + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\n" + kHost + "Transfer-Encoding: chunked\r\n\r\n", 400},
      // The chunks.
      {chunked + "\r\n", 400},
      {chunked + "g\r\n", 400},
      {chunked + "0x3\r\nabc", 400},
      {chunked + " 3\r\nabc", 400},
      {chunked + "3 \r\nabc", 400},
      {chunked + "-3\r\n", 400},
      {chunked + "3;name=value\r\nabc", 400},
      {chunked + "000000003\r\nabc", 400},
      {chunked + "ffffffffffffffff1\r\n", 400},
      {chunked + "3\nabc\r\n0\r\n\r\n", 400},
      {chunked + "3\r\nabcd\r\n", 400},
      {chunked + "3\r\nabc0\r\n", 400},
      {chunked + "21\r\n", 413},
      {chunked + "1f\r\n" + std::string(31, 'x') + "\r\n2\r\n", 413},
      {chunked + "1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\n", 413},
      {chunked + "0\r\nX: trailer\r\n\r\n", 400},
      {chunked + "0\r\nX: ", 400},
  };
  for (const auto& c : cases) {
    const Result r = parsed(c.bytes);
    EXPECT_EQ(r.stage, HttpParser::Stage::failed) << c.bytes;
    EXPECT_EQ(r.status, c.status) << c.bytes;
  }
}

TEST(HttpParser, WaitsForTheRest) {
  const std::string whole = "POST / HTTP/1.1\r\n" + kHost + "Content-Length: 5\r\n\r\nhello";
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const Result r = parse(std::string_view(whole).substr(0, n), n, 1);
    EXPECT_TRUE(r.stage == HttpParser::Stage::head || r.stage == HttpParser::Stage::body) << n;
    EXPECT_EQ(r.taken, n);
  }
}

TEST(HttpParser, StopsAtTheHeadAndAtTheEnd) {
  HttpParser p;
  std::string_view bytes =
      "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\nHost: a\r\nConnection: "
      "close\r\n\r\n";
  bytes.remove_prefix(p.feed(bytes));
  EXPECT_EQ(p.stage(), HttpParser::Stage::body);
  EXPECT_TRUE(bytes.starts_with("hiGET"));
  bytes.remove_prefix(p.feed(bytes));
  EXPECT_EQ(p.stage(), HttpParser::Stage::done);
  EXPECT_EQ(p.request().body, "hi");
  EXPECT_TRUE(p.request().keep_alive);
  EXPECT_EQ(p.feed(bytes), 0u) << "a request that is done takes no more";
  p.next();
  EXPECT_FALSE(p.begun());
  EXPECT_EQ(p.feed(bytes), bytes.size());
  EXPECT_EQ(p.request().target, "/b");
  EXPECT_FALSE(p.request().keep_alive);
}

TEST(HttpParser, KeepsAliveAsAsked) {
  const auto keeps = [](const std::string& version, const std::string& headers) {
    HttpParser p;
    p.feed("GET / " + version + "\r\nHost: a\r\n" + headers + "\r\n");
    EXPECT_EQ(p.stage(), HttpParser::Stage::done);
    return p.request().keep_alive;
  };
  EXPECT_TRUE(keeps("HTTP/1.1", ""));
  EXPECT_TRUE(keeps("HTTP/1.1", "Connection: upgrade\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.1", "Connection: upgrade , CLOSE\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.0", ""));
  EXPECT_TRUE(keeps("HTTP/1.0", "Connection: Keep-Alive\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.0", "Connection: keep-alive, close\r\n"));
}

}  // namespace
}  // namespace headwise::server
