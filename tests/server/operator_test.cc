// What operators meet: probes, scrapers, token files, logs, traces, sockets, reload, openapi.json.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "headwise/server/model/intents_openapi.h"
#include "tests/base/sentence.h"
#include "tests/server/harness.h"

namespace headwise::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class Room {
 public:
  Room() : path_(fs::temp_directory_path() / text("headwise_operator_", ::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Room() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& content, mode_t mode) const {
    std::ofstream(path_ / name) << content;
    ::chmod(at(name).c_str(), mode);
    return at(name);
  }

 private:
  fs::path path_;
};

/// A service that keeps the lines of its log.
struct Logged {
  explicit Logged(LogFormat format) {
    options.log_requests = true, options.log_format = format, options.log = [this](const std::string& line) {
      const std::lock_guard hold(lock);
      lines.push_back(line);
    };
  }
  std::mutex lock;
  std::vector<std::string> lines;
  ServiceOptions options = with_token();
};

Ask get(const std::string& path) {
  Ask a;
  a.method = "GET", a.path = path;
  return a;
}

TEST(Probes, AskByNumberByAnyNameAndWithoutHost) {
  Running service;
  for (const char* path : {"/health/live", "/health/ready", "/metrics"}) {
    Ask a = get(path);
    for (const char* host : {"10.1.2.3", "10.1.2.3:8080", "[fd00::7]:8080", "pod.cluster.local:8080"}) {
      a.host = host;
      EXPECT_EQ(ask(service.port(), a).status, 200) << path << ' ' << host;
    }
    Client c(service.port());
    c.send(std::string("GET ") + path + " HTTP/1.0\r\nAuthorization: Bearer " + kToken + "\r\n\r\n");
    EXPECT_EQ(c.reply().status, 200) << path;
  }
  Ask a;
  a.host = "10.1.2.3:8080";
  EXPECT_EQ(ask(service.port(), a).status, 200) << "a number cannot be made to point here";
  a.more = "Origin: http://10.1.2.3:8080\r\n";
  EXPECT_EQ(ask(service.port(), a).status, 200);
  a.more = "Origin: http://10.9.9.9\r\n";
  EXPECT_EQ(ask(service.port(), a).status, 403) << "a page of a numbered site";
  for (const char* host : {"10.1.2.3.evil", "10.1.2.3:", "10.1.2.3:x", "[::1", "evil.example", "1.2.3"}) {
    a.more = "", a.host = host;
    EXPECT_EQ(ask(service.port(), a).status, 421) << host;
  }
  ServiceOptions open;
  Running without(open);
  Ask scrape = get("/metrics");
  scrape.host = "evil.example", scrape.authorization = "";
  EXPECT_EQ(ask(without.port(), scrape).status, 421) << "no token: the name is asked";
}

TEST(Probes, AStarIsAnyHost) {
  ServiceOptions o = with_token();
  o.door.hosts = {"*"};
  Running service(o);
  Ask a;
  a.host = "intents.example:8443";
  EXPECT_EQ(ask(service.port(), a).status, 200);
  a.more = "Origin: https://other.example\r\n";
  EXPECT_EQ(ask(service.port(), a).status, 403);
}

TEST(Tokens, FilesAsVolumesOfSecretsHaveThem) {
  const Room room;
  const std::string one = "a-token-of-sixteen", two = "another-token-of-some-length";
  const std::string file = room.write("token", "# keys\n" + one + "\n\n" + two + "\r\n", 0644);
  fs::create_symlink("token", room.at("link"));
  for (const std::string& path : {file, room.at("link")}) {
    const Token::InFile found = Token::read(path);
    ASSERT_EQ(found.tokens.size(), 2u);
    EXPECT_EQ(found.tokens[1].words(), two);
    EXPECT_TRUE(found.readable_by_all);
  }
  EXPECT_FALSE(Token::read(room.write("own", one, 0600)).readable_by_all);
  EXPECT_EQ(Token::read(room.write("secret", one, 0444)).tokens.size(), 1u);
  const auto says = [&](const std::string& path) {
    return sentence_of(ErrorKind::bad_argument, [&] { Token::read(path); });
  };
  EXPECT_NE(says(room.write("open", one, 0666)).find("can be written by others"), std::string::npos);
  EXPECT_NE(says(room.write("empty", "\n# none\n", 0600)).find("holds no token"), std::string::npos);
  EXPECT_NE(says(room.write("short", "abc\n", 0600)).find("must hold 16 to 4096"), std::string::npos);

  ServiceOptions o;
  o.door.tokens = Token::read(file).tokens;
  Running service(o);
  const auto status_with = [&](const std::string& token) {
    Ask a;
    a.authorization = "Bearer " + token;
    return ask(service.port(), a).status;
  };
  EXPECT_EQ(status_with(one), 200);
  EXPECT_EQ(status_with(two), 200);
  EXPECT_EQ(status_with(one + two), 401);
  service.service().change_tokens(Token::read(room.write("next", two + "\n", 0600)).tokens);
  EXPECT_EQ(status_with(one), 401);
  EXPECT_EQ(status_with(two), 200);
  EXPECT_THROW(service.service().change_tokens({}), Error);
}

TEST(Log, JsonHasWhoWhatAndWhichTrace) {
  Logged logged(LogFormat::json);
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  {
    Running service(logged.options);
    Ask a;
    a.more = "X-Request-Id: abc-123_x.y:z\r\ntraceparent: 00-" + trace + "-00f067aa0ba902b7-01\r\n";
    EXPECT_EQ(ask(service.port(), a).headers["X-Request-Id"], "abc-123_x.y:z");
    for (const char* wrong : {"a b", "\"};", "", "<x>"}) {
      a.more = std::string("X-Request-Id: ") + wrong + "\r\n";
      const std::string id = ask(service.port(), a).headers["X-Request-Id"];
      EXPECT_EQ(id.find_first_not_of("0123456789"), std::string::npos) << id;
    }
    a = get("/secret/4711");
    a.more = "traceparent: 00-" + std::string(32, '0') + "-00f067aa0ba902b7-01\r\n";
    ask(service.port(), a);
  }
  ASSERT_EQ(logged.lines.size(), 6u);
  const Json first = Json::parse(logged.lines[0]), last = Json::parse(logged.lines[5]);
  EXPECT_EQ(first.at("message"), "request");
  EXPECT_EQ(first.at("level"), "info");
  EXPECT_EQ(first.at("request"), "abc-123_x.y:z");
  EXPECT_EQ(first.at("client"), "127.0.0.1");
  EXPECT_EQ(first.at("method"), "POST");
  EXPECT_EQ(first.at("route"), "/v1/intents");
  EXPECT_EQ(first.at("status"), 200);
  EXPECT_TRUE(first.at("ms").is_number());
  EXPECT_EQ(first.at("trace"), trace);
  EXPECT_EQ(first.at("time").get<std::string>().back(), 'Z');
  EXPECT_EQ(last.at("route"), "other");
  EXPECT_FALSE(last.contains("trace"));
  EXPECT_EQ(logged.lines[5].find("4711"), std::string::npos);
}

/// Nobody reads: lines are lost and counted, and no writer waits.
TEST(Log, AReaderThatStopsStopsNobody) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  LogWriter log(ends[1]);
  const auto start = Clock::now();
  for (int i = 0; i < 5000; ++i) log.write(std::string(100, 'x'));
  EXPECT_LT(Clock::now() - start, kPatience);
  EXPECT_GT(log.lost(), 1000);
  std::string read(1 << 17, '\0');
  const ssize_t n = ::read(ends[0], read.data(), read.size());
  ASSERT_GT(n, 0);
  log.write("after");
  std::string rest(4096, '\0');
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  std::string all;
  for (ssize_t k = 0; (k = ::read(ends[0], rest.data(), rest.size())) > 0;)
    all.append(rest.data(), static_cast<std::size_t>(k));
  EXPECT_NE(all.find(" lines of the log were lost: its reader was too slow)\nafter\n"), std::string::npos)
      << all;
  ::close(ends[0]);
  log.write("nobody is left");
  ::close(ends[1]);
}

TEST(Explain, HasALimitOfItsOwn) {
  ServiceOptions o = with_token();
  o.batcher.explain_tokens = 10;
  Running service(o);
  Ask a;
  a.path = "/v1/explain", a.body = "{\"text\": \"" + std::string(32, 'a') + "\"}";
  EXPECT_EQ(ask(service.port(), a).status, 200);
  a.body = "{\"text\": \"" + std::string(40, 'a') + "\"}";
  const Reply r = ask(service.port(), a);
  EXPECT_EQ(r.status, 413);
  EXPECT_NE(r.body.find("has 12 tokens, at most 10 are explained"), std::string::npos) << r.body;
  a.path = "/v1/intents";
  EXPECT_EQ(ask(service.port(), a).status, 200);
}

TEST(Explain, IsStoppedWhenItIsTooLate) {
  Logged logged(LogFormat::text);
  logged.options.batcher.linger = 0ms;
  {
    Running service(logged.options);
    service.facts.held = true;
    Ask a;
    a.path = "/v1/explain", a.more = "Headwise-Deadline-Ms: 100\r\n";
    EXPECT_EQ(ask(service.port(), a).status, 504);
    EXPECT_TRUE(becomes([&] { return service.facts.explaining == 0; })) << "it works on for nobody";
    a.more = "";
    Client left(service.port());
    left.send(a.bytes(left.host()));
    ASSERT_TRUE(becomes([&] { return service.facts.explaining == 1; }));
    left.reset();
    EXPECT_TRUE(becomes([&] { return service.facts.explaining == 0; }));
    service.facts.held = false;
    EXPECT_EQ(ask(service.port(), a).status, 200) << "the next one is not stopped";
  }
  for (const std::string& line : logged.lines) EXPECT_EQ(line.find("failed"), std::string::npos) << line;
}

TEST(Reload, AnotherModelWithoutAGap) {
  Running service;
  std::atomic<bool> end{false};
  std::atomic<int> wrong{0}, old_ones{0}, new_ones{0};
  std::thread load([&] {
    while (!end) {
      const Reply r = ask_text(service.port(), "hello");
      if (r.status != 200) ++wrong;
      r.body.find("\"model\": \"next\"") == std::string::npos ? ++old_ones : ++new_ones;
    }
  });
  EXPECT_TRUE(becomes([&] { return old_ones > 5; }));
  ModelFacts facts;
  Served next = model_of(facts);
  next.name = "next", next.about = "\"labels\": [\"other\"]";
  service.service().replace(std::move(next));
  EXPECT_TRUE(becomes([&] { return new_ones > 5; }));
  end = true;
  load.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(facts.calls, 0);
  EXPECT_EQ(ask(service.port(), get("/v1/labels")).body, "{\"model\": \"next\", \"labels\": [\"other\"]}\n");
  EXPECT_NE(metrics_of(service.port()).find("headwise_reloads_total{result=\"loaded\"} 1\n"),
            std::string::npos);
  service.stop();
}

TEST(Listening, AtASocketInTheFileSystem) {
  const Room room;
  const std::string path = room.at("serve.sock");
  ModelFacts facts;
  {  // what a killed service leaves
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    path.copy(a.sun_path, sizeof a.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
    ::close(fd);
  }
  room.write("file", "x", 0600);
  EXPECT_NE(
      sentence_of(ErrorKind::device, [&] { const Listener l(room.at("file")); }).find("it is no socket"),
      std::string::npos);
  EXPECT_NE(
      sentence_of(ErrorKind::bad_argument, [&] { const Listener l(std::string(200, 'x')); }).find("1 to 107"),
      std::string::npos);
  Listener listener(path);
  Service service(model_of(facts), listener, "", with_token());
  EXPECT_NE(sentence_of(ErrorKind::device, [&] { const Listener l(path); }).find("another service has it"),
            std::string::npos);
  struct stat s {};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0660u);
  std::thread thread([&] { service.run(); });
  Client c(path);
  c.send(Ask().bytes("localhost"));
  EXPECT_EQ(c.reply().status, 200);
  c.close();
  service.drain();
  thread.join();
  EXPECT_FALSE(fs::exists(path)) << "its name goes with it";
}

TEST(Metrics, OfTheProcess) {
  Running service;
  const std::string said = metrics_of(service.port());
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
                           "process_virtual_memory_bytes", "process_max_fds", "process_start_time_seconds"}) {
    const std::size_t at = said.find(text('\n', name, ' '));
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(std::stod(said.substr(at + 2 + std::string(name).size())), 0) << name;
  }
  const double start = std::stod(said.substr(said.find("\nprocess_start_time_seconds ") + 28));
  EXPECT_LT(std::abs(static_cast<double>(std::time(nullptr)) - start), 3600.0 * 24);
}

/// Every route is in the document, every status that comes back is named by its path, and answers of 200 have
/// the keys.
TEST(Openapi, HasEveryRouteAndEveryAnswer) {
  ServiceOptions o = with_token();
  o.deadline = 2s, o.batcher.queue_tokens = 8, o.batcher.linger = 0ms, o.batcher.request_tokens = 1000;
  o.report = std::make_shared<const std::string>("<title>heads</title>");
  Running service(o);
  const int port = service.port();
  Ask document = get("/openapi.json");
  const Json all = Json::parse(ask(port, document).body);
  EXPECT_EQ(all.at("openapi"), "3.1.0");
  EXPECT_EQ(all.at("security").size(), 1u);
  EXPECT_TRUE(Json::parse(openapi_text(intents_openapi({}, false))).at("security").empty());
  const Json less =
      Json::parse(openapi_text(intents_openapi({}, false, {.report = false, .explain = false})));
  for (const char* path : {"/", "/report", "/v1/explain"})
    EXPECT_FALSE(less.at("paths").contains(path)) << path;
  for (const RouteName& r : Service::routes()) {
    std::string method(r.method);
    for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    ASSERT_TRUE(all.at("paths").contains(r.path) && all.at("paths").at(std::string(r.path)).contains(method))
        << r.path;
    for (const auto& change : std::vector<std::function<void(Ask&)>>{
             [](Ask&) {}, [](Ask& a) { a.authorization = ""; }, [](Ask& a) { a.host = "evil.example"; },
             [](Ask& a) { a.more = "Origin: null\r\n"; }, [](Ask& a) { a.method = "PUT"; },
             [](Ask& a) { a.path += "?"; }, [](Ask& a) { a.more = "Expect: tea\r\n"; },
             [](Ask& a) { a.type = "text/plain"; }, [](Ask& a) { a.body = "[]"; },
             [](Ask& a) { a.more = "Transfer-Encoding: gzip\r\n", a.method = "GET"; },
             [](Ask& a) { a.body = "{\"text\": \"" + std::string(5000, 'a') + "\"}"; }}) {
      Ask a;
      a.path = r.path, a.method = r.method;
      change(a);
      ask(port, a);
    }
  }
  Ask poison;
  poison.body = R"({"text": "poison"})";
  EXPECT_EQ(ask(port, poison).status, 500);
  service.facts.held = true;
  std::vector<Client> waiting;
  for (int i = 0; i < 6; ++i)
    waiting.emplace_back(port), waiting.back().send(Ask().bytes(waiting.back().host()));
  for (Client& c : waiting) c.reply();
  service.facts.held = false;
  const std::string metrics = metrics_of(port);
  std::set<int> seen;
  for (std::size_t at = 0; (at = metrics.find("headwise_responses_total{route=\"/", at)) != std::string::npos;
       ++at) {
    const std::size_t path = at + 32, end = metrics.find('"', path),
                      status = metrics.find("status=\"", end) + 8;
    const std::string route = metrics.substr(path, end - path), code = metrics.substr(status, 3);
    seen.insert(std::stoi(code));
    const Json& item = all.at("paths").at(route);
    EXPECT_TRUE(item.begin().value().at("responses").contains(code)) << route << ' ' << code;
  }
  for (const int code : {200, 400, 401, 403, 405, 413, 415, 417, 421, 429, 500, 501, 504})
    EXPECT_TRUE(seen.contains(code)) << code << " was never answered: this test sees less than it should";
  Reply hello;
  ASSERT_TRUE(becomes([&] { return (hello = ask_text(port, "hello")).status == 200; }));
  const Json answer = Json::parse(hello.body);
  for (const auto& key : all.at("components").at("schemas").at("Answers").at("required"))
    EXPECT_TRUE(answer.contains(key.get<std::string>())) << key;
  for (const auto& key : all.at("components").at("schemas").at("Labels").at("required"))
    EXPECT_TRUE(Json::parse(ask(port, get("/v1/labels")).body).contains(key.get<std::string>())) << key;
}

}  // namespace
}  // namespace headwise::server
