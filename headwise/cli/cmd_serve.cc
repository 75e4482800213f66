// headwise serve: a model folder over HTTP, until SIGTERM.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <memory>

#include "headwise/cli/args.h"
#include "headwise/model/file.h"
#include "headwise/server/model/intent_model.h"
#include "headwise/server/service.h"

namespace headwise::cli {
namespace {

using namespace headwise::server;
using std::chrono::milliseconds;

struct Request {
  std::string model, listen = "127.0.0.1", token_file, token_env, report;
  std::vector<std::string> hosts;
  bool no_token = false, log_requests = false;
  int port = 8080, threads = 0;
  Index top = 5, linger_ms = 2, deadline_ms = 10'000, drain_ms = 30'000;
  ServiceOptions service;
};

std::atomic<Service*> running{nullptr};
static_assert(std::atomic<Service*>::is_always_lock_free);  // a handler may touch it

/// The first signal drains; the handlers are gone then, and a second one, the same or not, ends the process.
void on_signal(int) {
  ::signal(SIGTERM, SIG_DFL), ::signal(SIGINT, SIG_DFL);
  if (Service* service = running.load()) service->drain();
}

void handle_signals() {
  struct sigaction drain {};
  drain.sa_handler = on_signal;
  ::sigaddset(&drain.sa_mask, SIGTERM), ::sigaddset(&drain.sa_mask, SIGINT);  // one at a time
  ::sigaction(SIGTERM, &drain, nullptr);
  ::sigaction(SIGINT, &drain, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // whoever read our log may go
}

/// One line with the time, in one write: lines of two threads do not mix, and a full disk stops nobody.
void log_line(const std::string& words) {
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  ::gmtime_r(&now, &t);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ ", &t);
  const std::string line = time + words + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

std::optional<Token> token_of(const Request& r) {
  require((r.no_token ? 1 : 0) + (r.token_file.empty() ? 0 : 1) + (r.token_env.empty() ? 0 : 1) <= 1,
          ErrorKind::bad_argument, "serve", "give one of --token-file, --token-env and --no-token");
  if (r.no_token) return std::nullopt;
  if (!r.token_file.empty()) return Token::read(r.token_file);
  if (!r.token_env.empty()) return Token::from_environment(r.token_env);
  const Token token = Token::random();
  const std::string words =
      "token: " + token.words() + "\n(shown once; send it as Authorization: Bearer TOKEN)\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, words.data(), words.size());
  return token;
}

std::string base_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

int serve(const Request& r) {
  Listener listener(r.listen, r.port);  // before the model is read: a port in use is told at once
  require(listener.loopback() || !r.no_token, ErrorKind::bad_argument, "serve", "--listen ", r.listen,
          " is open to other machines; leave out --no-token");
  ServiceOptions options = r.service;
  options.door.hosts = r.hosts;
  options.batcher.linger = milliseconds(r.linger_ms), options.deadline = milliseconds(r.deadline_ms);
  options.loop.drain = milliseconds(r.drain_ms);
  options.log = log_line, options.log_requests = r.log_requests;
  constexpr Index kReportMost = Index{64} << 20;
  if (!r.report.empty())
    options.report = std::make_shared<const std::string>(read_text(r.report, kReportMost, "serve"));
  const auto recognizer = std::make_shared<const Recognizer>(Recognizer::load(r.model));
  Served model = serve_recognizer(recognizer, {base_name(r.model), r.threads, r.top});
  const std::string warm[] = {"ready"};
  model.intents(warm);  // plans and memory are made before the first client waits for them
  options.door.token = token_of(r);
  const bool six = r.listen.find(':') != std::string::npos;
  const std::string url = fmt::format("http://{}:{}", six ? "[" + r.listen + "]" : r.listen, listener.port());
  Service service(std::move(model), listener, r.listen, std::move(options));
  running = &service;
  handle_signals();
  if (!listener.loopback())
    log_line(
        "warning: other machines can reach this port, and HTTP hides nothing: put a proxy with TLS before "
        "it");
  std::fputs(
      fmt::format("serving {} ({} labels) at {}\n", r.model, recognizer->config().labels.size(), url).c_str(),
      stdout);
  std::fflush(stdout);
  const Index cut = service.run();
  running = nullptr;
  log_line(cut == 0 ? "drained: every request was answered"
                    : fmt::format("ended after --drain-ms with {} requests unanswered", cut));
  return cut == 0 ? kDone : kFailed;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("serve", "A trained recogniser over HTTP");
  word->footer(
      "Example: headwise serve model --port 8080\nSIGTERM or Ctrl-C answers what has come, then ends.");
  const auto r = std::make_shared<Request>();
  ServiceOptions& s = r->service;
  const auto option = [&](const char* name, auto& value, const char* help) {
    return word->add_option(name, value, help)->capture_default_str();
  };
  word->add_option("model", r->model, "Model folder")->required();
  option("--port", r->port, "Port; 0 takes a free one");
  option("--listen", r->listen, "Numeric address; another than loopback needs a token");
  word->add_option("--token-file", r->token_file,
                   "The token stands in this file, which only its owner may read");
  word->add_option("--token-env", r->token_env, "The token stands in this variable");
  word->add_flag("--no-token", r->no_token, "Ask for no token; on loopback alone");
  word->add_option("--allow-host", r->hosts, "A Host by which clients may call, such as intents.example:443");
  word->add_option("--report", r->report, "A page of headwise report, served at / and /report");
  option("--top", r->top, "Labels of an answer with their probabilities")->check(CLI::Range(0, 1 << 20));
  option("--threads", r->threads, "Threads of the model; 0: HEADWISE_THREADS, else all CPUs");
  const CLI::Range positive(Index{1}, Index{1} << 40);
  option("--batch-tokens", s.batcher.batch_tokens, "Tokens of requests joined into one batch")
      ->check(positive);
  option("--linger-ms", r->linger_ms, "How long a request waits for others")->check(CLI::Range(0, 1000));
  option("--queue-tokens", s.batcher.queue_tokens, "Tokens that may wait; above it 429")->check(positive);
  option("--max-tokens", s.batcher.request_tokens, "Tokens of one request")->check(positive);
  option("--max-texts", s.texts.texts, "Texts of one request")->check(positive);
  option("--max-text-bytes", s.texts.text_bytes, "Bytes of one text")->check(positive);
  option("--max-body-bytes", s.loop.http.body_bytes, "Bytes of one body")->check(positive);
  option("--max-connections", s.loop.connections, "Connections at once")->check(positive);
  option("--deadline-ms", r->deadline_ms, "Time of one request; above it 504")->check(positive);
  option("--drain-ms", r->drain_ms, "Time to answer what has come after SIGTERM")->check(positive);
  word->add_flag("--log-requests", r->log_requests,
                 "A line for every request: route, status, time; never its text");
  word->callback([r, &exit_code] { exit_code = serve(*r); });
}

}  // namespace headwise::cli
