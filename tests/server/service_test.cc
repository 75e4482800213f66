// Every route with every key to its door, and what comes back: answers, refusals, batches, metrics.
#include <gtest/gtest.h>

#include <future>
#include <mutex>

#include "headwise/model/json_reader.h"
#include "tests/base/sentence.h"
#include "tests/server/harness.h"

namespace headwise::server {
namespace {

ServiceOptions with_report() {
  ServiceOptions o = with_token();
  o.report = std::make_shared<const std::string>("<!doctype html><title>heads</title>");
  o.loop.http.body_bytes = 4096;
  return o;
}

// The recorded verdict of each route for each way to ask.
TEST(Service, EveryRouteTimesEveryWayToAsk) {
  Running service(with_report());
  struct Verdicts {
    const char *path, *method;
    int right, no_token, bad_token, bad_host, bad_origin, cross_site, wrong_method, oversize, query;
  };
  const Verdicts table[] = {
      //                          right none  bad   host origin  site method  size query
      {"/health/live", "GET", 200, 200, 200, 200, 403, 403, 405, 413, 400},
      {"/health/ready", "GET", 200, 200, 200, 200, 403, 403, 405, 413, 400},
      {"/openapi.json", "GET", 200, 200, 200, 200, 403, 403, 405, 413, 400},
      {"/metrics", "GET", 200, 401, 401, 200, 403, 403, 405, 413, 400},
      {"/v1/labels", "GET", 200, 401, 401, 421, 403, 403, 405, 413, 400},
      {"/", "GET", 200, 401, 401, 421, 403, 403, 405, 413, 400},
      {"/report", "GET", 200, 401, 401, 421, 403, 403, 405, 413, 400},
      {"/try", "GET", 200, 200, 200, 200, 403, 403, 405, 413, 400},
      {"/v1/intents", "POST", 200, 401, 401, 421, 403, 403, 405, 413, 400},
      {"/v1/explain", "POST", 200, 401, 401, 421, 403, 403, 405, 413, 400},
      {"/nowhere", "GET", 404, 401, 401, 421, 403, 403, 404, 413, 400},
      {"/v1/intents/", "POST", 404, 401, 401, 421, 403, 403, 404, 413, 400},
      {"/health/../metrics", "GET", 404, 401, 401, 421, 403, 403, 404, 413, 400},
      {"/%2e%2e/etc/passwd", "GET", 404, 401, 401, 421, 403, 403, 404, 413, 400},
      {"//metrics", "GET", 404, 401, 401, 421, 403, 403, 404, 413, 400},
  };
  for (const Verdicts& v : table) {
    Ask a;
    a.path = v.path, a.method = v.method;
    const auto with = [&](const std::function<void(Ask&)>& change) {
      Ask changed = a;
      change(changed);
      return ask(service.port(), changed).status;
    };
    EXPECT_EQ(with([](Ask&) {}), v.right) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.authorization = ""; }), v.no_token) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.authorization += "r"; }), v.bad_token) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.authorization.pop_back(); }), v.bad_token) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.authorization = std::string("Token ") + kToken; }), v.bad_token) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.host = "evil.example"; }), v.bad_host) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.host = "localhost"; }), v.bad_host) << v.path << ": that is port 80";
    EXPECT_EQ(with([](Ask& x) { x.host_left_out = true; }), 400) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.more = "Origin: http://evil.example\r\n"; }), v.bad_origin) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.more = "Origin: null\r\n"; }), v.bad_origin) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.more = "Sec-Fetch-Site: cross-site\r\n"; }), v.cross_site) << v.path;
    for (const char* method :
         {"PUT", "DELETE", "OPTIONS", "TRACE", std::string_view(v.method) == "GET" ? "POST" : "GET"})
      EXPECT_EQ(with([&](Ask& x) { x.method = method; }), v.wrong_method) << v.path << " " << method;
    EXPECT_EQ(with([](Ask& x) { x.method = "POST", x.body.assign(4097, ' '); }), v.oversize) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.path += std::string("?token=") + kToken; }), v.query) << v.path;
    EXPECT_EQ(with([](Ask& x) { x.path += "?", x.authorization = ""; }), v.query) << v.path;
    EXPECT_EQ(
        with([&](Ask& x) { x.more = "Origin: http://127.0.0.1:" + std::to_string(service.port()) + "\r\n"; }),
        v.right)
        << v.path;
  }
}

TEST(Service, TokenInTheUrlIsRefusedAndNeverAnswered) {
  Running service;
  Ask a;
  a.path = std::string("/v1/intents?access_token=") + kToken, a.authorization = "";
  const Reply r = ask(service.port(), a);
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.body.find(kToken), std::string::npos);
  EXPECT_NE(r.body.find("Authorization header"), std::string::npos);
  EXPECT_EQ(service.facts.calls, 0);
}

TEST(Service, RoutesThatAreNotServedAreNotThere) {
  Running service(with_token(), [](Served& m) { m.explain = nullptr; });
  Ask a;
  a.path = "/v1/explain";
  EXPECT_EQ(ask(service.port(), a).status, 404);
  a.method = "GET", a.path = "/report";
  EXPECT_EQ(ask(service.port(), a).status, 404);
}

TEST(Service, AllowedHostsAndNoTokenByWish) {
  ServiceOptions o;
  o.door.hosts = {"Intents.Example"};
  Running service(o);
  Ask a;
  a.host = "intents.EXAMPLE", a.authorization = "", a.more = "Origin: https://intents.example\r\n";
  EXPECT_EQ(ask(service.port(), a).status, 200);
  a.host = "intents.example.evil";
  EXPECT_EQ(ask(service.port(), a).status, 421);
}

TEST(Service, ThePageToTryASentenceSaysNothingOfTheModelAndReachesThisServiceAlone) {
  Running service(with_token());
  Ask a;
  a.method = "GET", a.path = "/try", a.authorization = "";
  Reply r = ask(service.port(), a);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.headers["Content-Type"], "text/html; charset=utf-8");
  EXPECT_NE(r.body.find("/v1/explain"), std::string::npos);
  EXPECT_EQ(r.body.find(kToken), std::string::npos);
  for (const char* address : {"http:", "https:", "//cdn", "@import", "src="})
    EXPECT_EQ(r.body.find(address), std::string::npos) << address;
  const std::string policy = r.headers["Content-Security-Policy"];
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(policy.find("connect-src 'self'"), std::string::npos);
  EXPECT_EQ(service.facts.calls, 0);
}

TEST(Service, ABrowserShowsTheTokenAsAPasswordForThePageAlone) {
  Running service(with_report());
  Ask a;
  a.method = "GET", a.path = "/", a.authorization = "";
  Reply r = ask(service.port(), a);
  EXPECT_EQ(r.headers["WWW-Authenticate"], "Basic realm=\"headwise\"");
  a.authorization = "Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";  // me:correct-horse-battery-staple
  r = ask(service.port(), a);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body, "<!doctype html><title>heads</title>");
  EXPECT_NE(r.headers["Content-Security-Policy"].find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_EQ(r.headers["X-Content-Type-Options"], "nosniff");
  EXPECT_EQ(r.headers.count("Access-Control-Allow-Origin"), 0u);
  for (const char* wrong :
       {"Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ", "Basic ====", "Basic bWU6", "Basic "}) {
    a.authorization = wrong;
    EXPECT_EQ(ask(service.port(), a).status, 401) << wrong;
  }
  a = Ask();
  a.authorization = "Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";
  EXPECT_EQ(ask(service.port(), a).status, 401) << "a page elsewhere could make a browser send it";
}

TEST(Service, AnswersOneTextOrMany) {
  Running service;
  Reply r = ask_text(service.port(), "hello");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body, "{\"model\": \"test \\\"model\\\"\", \"answers\": [" + answer_to("hello") +
                        "], \"tokens\": 3}\n");
  EXPECT_EQ(r.headers["Cache-Control"], "no-store");
  EXPECT_FALSE(r.headers["X-Request-Id"].empty());
  Ask a;
  a.body = R"( { "texts" : [ "hello", "利率上调\u4e86", "" ] } )";
  r = ask(service.port(), a);
  EXPECT_EQ(r.status, 200);
  EXPECT_NE(r.body.find(answer_to("hello") + ", " + answer_to("利率上调了") + ", " + answer_to("")),
            std::string::npos)
      << r.body;
  a.path = "/v1/explain", a.body = R"({"text": "four"})", a.type = "Application/JSON; charset=utf-8";
  EXPECT_NE(ask(service.port(), a).body.find("\"answers\": [{\"why\": 4}]"), std::string::npos);
  a.body = R"({"texts": ["a", "b"]})";
  EXPECT_EQ(ask(service.port(), a).status, 400);
}

TEST(Service, RefusesBodiesItDoesNotKnow) {
  ServiceOptions o = with_token();
  o.texts = {.texts = 3, .text_bytes = 100}, o.batcher.request_tokens = 50;
  Running service(o);
  const struct {
    std::string body;
    int status;
  } cases[] = {
      {"", 400},
      {"hello", 400},
      {"[]", 400},
      {"{}", 400},
      {"{\"text\": 3}", 400},
      {"{\"text\": null}", 400},
      {"{\"text\": \"a\"", 400},
      {"{\"text\": \"a", 400},
      {"{\"text\": \"a\"}}", 400},
      {"{\"text\": \"a\"} x", 400},
      {"{\"text\": \"a\", \"text\": \"b\"}", 400},
      {"{\"text\": \"a\", \"texts\": [\"b\"]}", 400},
      {"{\"texts\": []}", 400},
      {"{\"texts\": [\"a\",]}", 400},
      {"{\"texts\": [[\"a\"]]}", 400},
      {"{\"texts\": {\"a\": \"b\"}}", 400},
      {"{\"text\": \"a\", \"top\": 3}", 400},
      {std::string("{\"text\": \"a\0b\"}", 15), 400},
      {"{\"text\": \"\\u0000\"}", 400},
      {"{\"text\": \"\\ud800\"}", 400},
      {"{\"text\": \"\xff\"}", 400},
      {"{\"text\": \"\xc0\xaf\"}", 400},
      {std::string(300, '['), 400},
      {"{\"texts\": [\"a\", \"b\", \"c\"]}", 200},
      {"{\"texts\": [\"a\", \"b\", \"c\", \"d\"]}", 413},
      {"{\"text\": \"" + std::string(100, 'a') + "\"}", 200},
      {"{\"text\": \"" + std::string(101, 'a') + "\"}", 413},
      {"{\"texts\": [\"" + std::string(100, 'a') + "\", \"" + std::string(100, 'a') + "\"]}", 413},
  };
  for (const auto& c : cases) {
    Ask a;
    a.body = c.body;
    const Reply r = ask(service.port(), a);
    EXPECT_EQ(r.status, c.status) << c.body << r.body;
  }
  Ask a;
  for (const char* type : {"", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"}) {
    a.type = type;
    EXPECT_EQ(ask(service.port(), a).status, 415) << type;
  }
  a = Ask();
  a.more = "Content-Encoding: gzip\r\n";
  EXPECT_EQ(ask(service.port(), a).status, 415);
  Client c(service.port());
  c.send("POST /v1/intents HTTP/1.1\r\nHost: " + c.host() + "\r\nAuthorization: Bearer " + kToken +
         "\r\n\r\n");
  EXPECT_EQ(c.reply().status, 411);
}

TEST(Service, AnswersAreAlwaysUtf8) {
  Running service;
  const struct {
    const char *body, *quoted;
  } cases[] = {{"{\u201ctext\u201d: \"hi\"}", "\\\"\u201c\\\""},
               {"\ufeff{\"text\": \"hi\"}", "\\\"\ufeff\\\""},
               {"{\"text\": \u00e9}", "\\\"\u00e9\\\""},
               {"{\"texts\": [\U0001f600]}", "\\\"\U0001f600\\\""}};
  for (const auto& c : cases) {
    Ask a;
    a.body = c.body;
    const Reply r = ask(service.port(), a);
    EXPECT_EQ(r.status, 400) << c.body;
    EXPECT_EQ(first_bad_utf8(r.body), -1) << r.body;
    EXPECT_NE(r.body.find(c.quoted), std::string::npos) << r.body;
  }
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [] { Running named(with_token(), [](Served& m) { m.name = "caf\xe9"; }); }),
            "serve: byte 3 of the model's name is no UTF-8; rename its folder");
}

TEST(Service, OneBodyMayBeAsLargeAsItsLimit) {
  ServiceOptions o = with_token();
  o.loop.http.body_bytes = o.loop.bodies_bytes + 1;
  Running service(o);
  Client c(service.port());
  c.send("POST /v1/intents HTTP/1.1\r\nHost: " + c.host() + "\r\nAuthorization: Bearer " + kToken +
         "\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
         "e\r\n{\"text\": \"hi\"}\r\n0\r\n\r\n");
  EXPECT_EQ(c.reply().status, 200);
}

TEST(Service, OneConnectionManyRequests) {
  Running service;
  Client c(service.port());
  Ask get, head, post;
  get.method = "GET", get.path = "/health/live";
  head.method = "HEAD", head.path = "/health/live";
  // Pipelined: the answers come in order, also behind one that waits for the model.
  c.send(get.bytes(c.host()) + post.bytes(c.host()) + head.bytes(c.host()) + post.bytes(c.host()));
  EXPECT_NE(c.reply().body.find("\"ok\""), std::string::npos);
  EXPECT_NE(c.reply().body.find("answers"), std::string::npos);
  const Reply r = c.reply(kPatience, true);
  EXPECT_EQ(r.status, 200);
  EXPECT_NE(c.reply().body.find("answers"), std::string::npos);
  post.authorization = "Bearer wrong";  // and a refusal whose body was not read ends it
  c.send(post.bytes(c.host()));
  const Reply refused = c.reply();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("Connection"), "close");
  EXPECT_TRUE(c.hears_end());
}

TEST(Service, HundredContinueComesAfterTheDoor) {
  Running service;
  const auto head = [&](const char* token) {
    return "POST /v1/intents HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(service.port()) +
           "\r\nAuthorization: Bearer " + token +
           "\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n" +
           "Expect: 100-continue\r\n\r\n";
  };
  Client c(service.port());
  c.send(head(kToken));
  EXPECT_EQ(c.reply().status, 100);
  c.send("8\r\n{\"text\":\r\n");
  c.send("5\r\n\"hi\"}\r\n0\r\n\r\n");
  EXPECT_EQ(c.reply().status, 200);
  Client stranger(service.port());
  stranger.send(head("none"));
  EXPECT_EQ(stranger.reply().status, 401);
}

TEST(Service, JoinsRequestsWithEqualAnswers) {
  Running service;
  service.facts.held = true;  // the first keeps the model until all others wait
  std::vector<std::thread> threads;
  threads.emplace_back([&] { ask_text(service.port(), "first"); });
  EXPECT_TRUE(becomes([&] { return service.facts.calls == 1; }));
  std::mutex lock;
  std::map<std::string, std::string> joined;
  for (int i = 0; i < 12; ++i)
    threads.emplace_back([&, i] {
      const std::string s = "text " + std::to_string(i);
      const Reply r = ask_text(service.port(), s);
      const std::lock_guard hold(lock);
      joined[s] = r.body;
    });
  EXPECT_TRUE(metrics_say(service.port(), "headwise_queue_requests 12"));
  service.facts.held = false;
  for (std::thread& t : threads) t.join();
  EXPECT_LT(service.facts.calls, 13) << "nothing was joined";
  for (const auto& [s, body] : joined) EXPECT_EQ(ask_text(service.port(), s).body, body);
}

TEST(Service, AFailureStaysWithItsRequest) {
  ServiceOptions o = with_token();
  o.batcher.linger = 30ms;
  std::mutex lock;
  std::string log;
  o.log = [&](const std::string& line) {
    const std::lock_guard hold(lock);
    log += line + "\n";
  };
  Running service(o);
  Reply bad;
  std::thread other([&] { bad = ask_text(service.port(), "poison"); });
  const Reply good = ask_text(service.port(), "hello");
  other.join();
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(bad.status, 500);
  EXPECT_EQ(bad.body.find("cannot read"), std::string::npos) << "what went wrong inside is for the log";
  EXPECT_EQ(ask_text(service.port(), "hello").status, 200);
  service.stop();
  EXPECT_NE(log.find("this text it cannot read"), std::string::npos);
}

TEST(Service, AFullQueueRefusesAtOnce) {
  ServiceOptions o = with_token();
  o.batcher.queue_tokens = 8, o.batcher.linger = 0ms;  // two of "hello"
  Running service(o);
  service.facts.held = true;
  std::vector<Client> clients;
  for (int i = 0; i < 10; ++i) {
    clients.emplace_back(service.port());
    clients.back().send(Ask().bytes(clients.back().host()));
    ASSERT_TRUE(becomes([&] { return service.facts.calls == 1; }));
  }
  EXPECT_TRUE(metrics_say(service.port(), "headwise_responses_total{route=\"/v1/intents\",status=\"429\"} 7"))
      << "refusals wait for the model";
  EXPECT_TRUE(metrics_say(service.port(), "headwise_queue_requests 2"));
  service.facts.held = false;
  int accepted = 0;
  for (Client& c : clients) {
    Reply r = c.reply();
    accepted += r.status == 200;
    if (r.status == 200) continue;
    EXPECT_EQ(r.status, 429);
    EXPECT_GE(std::stoi(r.headers["Retry-After"]), 1);
    EXPECT_EQ(r.headers["Connection"], "keep-alive");
  }
  EXPECT_EQ(accepted, 3);
}

TEST(Service, DeadlinesAreKept) {
  ServiceOptions o = with_token();
  o.deadline = 50ms, o.batcher.linger = 0ms;
  Running service(o);
  service.facts.held = true;
  Client c(service.port());
  c.send(Ask().bytes(c.host()));
  EXPECT_EQ(c.reply().status, 504);
  Ask second;
  second.body = R"({"text": "second"})", second.more = "Headwise-Deadline-Ms: 99999\r\n";
  c.send(second.bytes(c.host()));
  EXPECT_EQ(c.reply().status, 504) << "a client may ask for less time, not for more";
  service.facts.held = false;
  // The late answer of the first must not be taken for that of another.
  Ask third;
  third.body = R"({"text": "third"})";
  for (Reply r; r.status != 200;) {
    c.send(third.bytes(c.host()));
    r = c.reply();
    EXPECT_TRUE(r.status == 504 || r.body.find(answer_to("third")) != std::string::npos);
  }
  for (const char* wrong : {"0", "-1", "x", "1.5", ""}) {
    third.more = std::string("Headwise-Deadline-Ms: ") + wrong + "\r\n";
    EXPECT_EQ(ask(service.port(), third).status, 400) << wrong;
  }
}

TEST(Service, SumsOfMetricsKeepEveryDigit) {
  Metrics metrics;
  metrics.batch(1, 1, 123'456'789, Metrics::Seconds(1e6 + 0.25));
  const std::string said = metrics.print({});
  EXPECT_NE(said.find("_tokens_sum 123456789\n"), std::string::npos) << said;
  EXPECT_NE(said.find("_seconds_sum 1000000.25\n"), std::string::npos) << said;
}

TEST(Service, ABatchIsCountedBeforeItsAnswersLeave) {
  ModelFacts facts;
  Metrics metrics;
  std::promise<std::string> said;
  Batcher batcher(model_of(facts), {}, metrics);
  Job job;
  job.texts = {"hello"}, job.deadline = Clock::now() + 60s;
  job.done = [&](const Outcome&) { said.set_value(metrics.print({})); };
  ASSERT_TRUE(batcher.submit(job));
  const std::string then = said.get_future().get();
  EXPECT_NE(then.find("headwise_texts_total 1\n"), std::string::npos) << then;
}

TEST(Service, MetricsAndLogHoldNoWordOfARequest) {
  ServiceOptions o = with_token();
  std::mutex lock;
  std::string log;
  o.log_requests = true, o.log = [&](const std::string& line) {
    const std::lock_guard hold(lock);
    log += line + "\n";
  };
  Running service(o);
  ask_text(service.port(), "my account number is 4711");
  Ask a;
  a.method = "GET", a.path = "/private/4711", a.more = "X-Secret: 4711\r\n";
  ask(service.port(), a);
  a.path = "/metrics";
  const std::string metrics = ask(service.port(), a).body;
  EXPECT_EQ(metrics.find("4711"), std::string::npos);
  for (const char* line :
       {"headwise_responses_total{route=\"/v1/intents\",status=\"200\"} 1\n",
        "headwise_responses_total{route=\"other\",status=\"404\"} 1\n", "headwise_texts_total 1\n",
        "headwise_tokens_total 8\n", "headwise_ready 1\n", "headwise_batch_tokens_bucket{le=\"8\"} 1\n",
        "headwise_request_seconds_count{route=\"/v1/intents\"} 1\n", "headwise_queue_requests 0\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  service.stop();
  EXPECT_EQ(log.find("4711"), std::string::npos) << log;
  EXPECT_EQ(log.find(kToken), std::string::npos);
  EXPECT_NE(log.find(" /v1/intents 200 "), std::string::npos) << log;
  EXPECT_NE(log.find(" other 404 "), std::string::npos) << log;
}

}  // namespace
}  // namespace headwise::server
