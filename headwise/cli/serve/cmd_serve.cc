// headwise serve: a recogniser or a language model over HTTP, until SIGTERM; SIGHUP reads it again.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/args/device.h"
#include "headwise/cli/ranks/rank_models.h"
#include "headwise/cli/serve/serve_ranks.h"
#include "headwise/cli/serve/serving.h"
#include "headwise/model/file.h"
#include "headwise/model/json_object.h"
#include "headwise/server/completions/decoder_service.h"
#include "headwise/server/model/intent_model.h"
#include "headwise/server/service.h"

namespace headwise::cli {
namespace {

using namespace headwise::server;
using std::chrono::milliseconds;

struct Request {
  std::string model, listen = "127.0.0.1", unix_path, report, log_format = "text";
  std::vector<std::string> hosts, token_files, token_envs;
  bool no_token = false;
  int port = 8080, threads = 0;
  Index top = 5, linger_ms = 2, deadline_ms = 0, drain_ms = 30'000;
  ServiceOptions service;
  DeviceChoice device;                                             // of a recogniser
  std::string dtype = "stored", rows = "exact", kv_dtype = "f32";  // of a language model
  Index kv_mib = 256, requests = 64;
  RankRequest ranks;
};

LogFormat format_of(const std::string& word) {
  require(word == "text" || word == "json", ErrorKind::bad_argument, "serve", "--log-format is \"", word,
          "\"; give text or json");
  return word == "json" ? LogFormat::json : LogFormat::text;
}

/// Every token of every file and variable that was named; none where none was.
std::vector<Token> tokens_of(const Request& r, ProgramLog& log) {
  std::vector<Token> all;
  for (const std::string& path : r.token_files) {
    Token::InFile found = Token::read(path);
    if (found.readable_by_all)
      log.say("warning", path + " can be read by every user of this machine; chmod 600 it where you can");
    all.insert(all.end(), found.tokens.begin(), found.tokens.end());
  }
  for (const std::string& name : r.token_envs) all.push_back(Token::from_environment(name));
  return all;
}

std::vector<Token> first_tokens(const Request& r, ProgramLog& log) {
  const bool named = !r.token_files.empty() || !r.token_envs.empty();
  require(!r.no_token || !named, ErrorKind::bad_argument, "serve",
          "--no-token and a token are both given; leave out --no-token, or --token-file and --token-env");
  if (r.no_token || named) return tokens_of(r, log);
  const Token token = Token::random();
  const std::string words =
      "token: " + token.words() + "\n(shown once; send it as Authorization: Bearer TOKEN)\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, words.data(), words.size());
  return {token};
}

std::string base_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// The ranks that serve one model; alone there is one, and no leader.
struct Team {
  const Ranks& ranks;
  std::shared_ptr<RankLeader> leader;
};

Served load_model(const Request& r, const Team& team, std::size_t* labels = nullptr) {
  Context ctx({.threads = 1});
  Recognizer model = load_on_ranks(r.model, 0, team.ranks, ctx);
  place_model(model, r.device, "serve", team.ranks.world().ranks(), ctx);
  const auto recognizer = std::make_shared<const Recognizer>(std::move(model));
  if (labels != nullptr) *labels = recognizer->config().labels.size();
  return serve_recognizer(recognizer, {base_name(r.model), r.threads, r.top});
}

/// Plans and memory are made before the first client waits for them.
Served warmed(Served model) {
  const std::string warm[] = {"ready"};
  model.intents(warm);
  return model;
}

/// Every rank works on what one is asked.
Served over_ranks(Served model, std::shared_ptr<RankLeader> leader) {
  model.intents = [leader = std::move(leader), alone = model.intents](std::span<const std::string> texts) {
    return leader->run(texts, alone);
  };
  model.explain = nullptr;  // gradients of single heads are not there over ranks
  return model;
}

/// What every service is told.
void set_common(const Request& r, ProgramLog& log, HttpServiceOptions& options) {
  options.door.hosts = r.hosts;
  options.loop.drain = milliseconds(r.drain_ms);
  options.log = [&log](const std::string& line) { log.write(line); };
  options.log_lines_lost = [&log] { return log.lost(); };
  options.log_format = log.format();
}

ServiceOptions options_of(const Request& r, ProgramLog& log) {
  ServiceOptions options = r.service;
  set_common(r, log, options);
  options.batcher.linger = milliseconds(r.linger_ms);
  options.deadline = milliseconds(r.deadline_ms > 0 ? r.deadline_ms : 10'000);
  constexpr Index kReportMost = Index{64} << 20;
  if (!r.report.empty())
    options.report = std::make_shared<const std::string>(read_text(r.report, kReportMost, "serve"));
  return options;
}

/// The folder and the files of tokens as they are now; what cannot be read leaves what was there.
void reload(const Request& r, const Team& team, Service& service, ProgramLog& log) {
  try {
    if (!r.token_files.empty()) service.change_tokens(tokens_of(r, log));
    if (team.leader) return log.say("info", "tokens were read again; a model over ranks stays as it is");
    service.replace(warmed(load_model(r, team)));
    log.say("info", "reloaded " + r.model);
  } catch (const std::exception& e) {
    service.replacement_failed();
    log.say("error", fmt::format("not reloaded, the old model goes on: {}", e.what()));
  }
}

std::string url_of(const Request& r, const Listener& listener) {
  if (!listener.path().empty()) return "unix:" + listener.path();
  const bool six = r.listen.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", six ? "[" + r.listen + "]" : r.listen, listener.port());
}

/// A file, or a folder whose config.json names a type of model as Hugging Face's do.
bool is_decoder(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) return std::filesystem::exists(path, none);
  const std::string config = path + "/config.json";
  return std::filesystem::exists(config, none) && JsonObject::read(config, "serve").has("model_type");
}

/// Until it ends; says at which address, and how it ended.
int run_service(HttpService& service, const Request& r, const Listener& listener, ProgramLog& log,
                const std::string& what, std::function<void()> reload) {
  Index cut = 0;
  {
    const Serving serving(service, std::move(reload));
    if (!listener.local())
      log.say("warning",
              "other machines can reach this port, and HTTP hides nothing: put a proxy with TLS before it");
    std::fputs(fmt::format("serving {} ({}) at {}\n", r.model, what, url_of(r, listener)).c_str(), stdout);
    std::fflush(stdout);
    cut = service.run();
  }
  log.say(cut == 0 ? "info" : "error",
          cut == 0 ? "drained: every request was answered"
                   : fmt::format("ended after --drain-ms with {} requests unanswered", cut));
  return cut == 0 ? kDone : kFailed;
}

/// A leader that outlives its service tells it nothing.
struct Forgotten {
  RankLeader* leader;
  ~Forgotten() {
    if (leader) leader->when_lost(nullptr);
  }
};

DecoderHostOptions host_options(const Request& r, const Ranks& ranks) {
  DecoderHostOptions host;
  host.model.dtype = weights_dtype_named("serve: --dtype", r.dtype);
  host.model.rounded_rows = rounded_rows_named("serve: --rows", r.rows);
  host.model.team = ranks.teams().tensor, host.model.context = ranks.teams().context;
  host.kv_dtype = kv_dtype_named("serve: --kv-dtype", r.kv_dtype);
  host.kv_bytes = r.kv_mib << 20;
  ranks.agree({{"rows", r.rows}, {"kv_dtype", r.kv_dtype}, {"kv_mib", text(r.kv_mib)}});
  return host;
}

int serve_decoder(const Request& r, const Ranks& ranks, Listener& listener, ProgramLog& log) {
  DecoderServiceOptions options;
  static_cast<HttpServiceOptions&>(options) = r.service;
  set_common(r, log, options);
  options.deadline = milliseconds(r.deadline_ms > 0 ? r.deadline_ms : 120'000);
  options.worker.queue_requests = r.requests;
  options.worker.limits.heads_tokens = r.service.batcher.explain_tokens;
  options.threads = r.threads;
  require(r.report.empty(), ErrorKind::bad_argument, "serve", "--report is a page of a recogniser; ", r.model,
          " is a language model");
  Context ctx({.threads = r.threads});
  auto model = std::make_unique<DecoderHost>(r.model, host_options(r, ranks), ctx);
  const DecoderConfig& c = model->model().config();
  const int size = ranks.world().ranks();
  const std::string what = fmt::format("{}, {} layers of {} heads{}", c.family, c.layers, c.heads,
                                       size > 1 ? fmt::format(", {} ranks", size) : "");
  options.door.tokens = first_tokens(r, log);
  std::shared_ptr<RankLeader> leader;
  if (size > 1) {
    leader = std::make_shared<RankLeader>(ranks.world());
    model->lead([leader](const DecoderTurn& turn, const std::function<void()>& step) {
      leader->run(words_of(turn),
                  [&](std::span<const std::string>) { return step(), std::vector<std::string>(); });
    });
  }
  DecoderService service(std::move(model), base_name(r.model), listener, r.unix_path.empty() ? r.listen : "",
                         std::move(options));
  const Forgotten forgotten{leader.get()};  // goes before the service, whatever ends it
  if (leader) leader->when_lost([&] { service.drain(); });
  const int code = run_service(service, r, listener, log, what, [&] {
    try {
      if (!r.token_files.empty()) service.change_tokens(tokens_of(r, log));
      log.say("info", "tokens were read again; a language model stays as it is");
    } catch (const std::exception& e) {
      log.say("error", fmt::format("not reloaded: {}", e.what()));
    }
  });
  if (leader) leader->check();
  return code;
}

/// A rank above 0: no port, no log; it runs what rank 0 says.
int follow(const Request& r, const Ranks& ranks) {
  if (is_decoder(r.model)) {
    Context ctx({.threads = r.threads});
    DecoderHost host(r.model, host_options(r, ranks), ctx);
    follow_leader(ranks.world(),
                  [&](std::span<const std::string> words) { host.follow(turn_of(words), ctx); });
    return kDone;
  }
  Session session({.threads = r.threads});
  const Context ctx({.threads = 1});
  const Recognizer model = load_on_ranks(r.model, 0, ranks, ctx);
  follow_leader(ranks.world(), [&](std::span<const std::string> texts) { model.predict(texts, session); });
  return kDone;
}

int serve(const Request& r) {
  const Ranks ranks("serve", r.ranks, Order::one_rank);
  if (!r.ranks.order.empty() && is_decoder(r.model))
    throw RankError(
        text("serve: ", r.model, " is a language model, whose ranks have the bits of one; leave out --order"),
        true);
  if (!ranks.leads()) return follow(r, ranks);
  ProgramLog log(format_of(r.log_format));
  // Before the model is read: a port in use is told at once.
  const auto listener = r.unix_path.empty() ? std::make_unique<Listener>(r.listen, r.port)
                                            : std::make_unique<Listener>(r.unix_path);
  require(listener->local() || !r.no_token, ErrorKind::bad_argument, "serve", "--listen ", r.listen,
          " is open to other machines; leave out --no-token");
  require(!is_decoder(r.model) || named_device(r.device.name, "serve").is_cpu(), ErrorKind::unsupported,
          "serve", r.model, " is a language model, which runs on the CPU; leave out --device");
  if (is_decoder(r.model)) return serve_decoder(r, ranks, *listener, log);
  ServiceOptions options = options_of(r, log);
  options.door.tokens = first_tokens(r, log);
  Team team{ranks, nullptr};
  // All ranks agree on the model before one of them is told what to run.
  const int size = ranks.world().ranks();
  std::size_t labels = 0;
  Served model = load_model(r, team, &labels);
  if (size > 1) {
    team.leader = std::make_shared<RankLeader>(ranks.world());
    model = over_ranks(std::move(model), team.leader);
  }
  Service service(warmed(std::move(model)), *listener, r.unix_path.empty() ? r.listen : "",
                  std::move(options));
  const Forgotten forgotten{team.leader.get()};  // goes before the service, whatever ends it
  if (team.leader) team.leader->when_lost([&] { service.drain(); });
  const std::string what =
      fmt::format("{} labels{}", labels, size > 1 ? fmt::format(", {} ranks", size) : "");
  const int code = run_service(service, r, *listener, log, what, [&] { reload(r, team, service, log); });
  if (team.leader) team.leader->check();
  return code;
}

/// HEADWISE_SERVE_MAX_TOKENS for --max-tokens: what a unit file or a container sets. The command line comes
/// first.
void name_variables(CLI::App& word) {
  for (CLI::Option* option : word.get_options()) {
    std::string name = option->get_single_name();
    if (name == "help") continue;
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname("HEADWISE_SERVE_" + name);
  }
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("serve", "A trained recogniser or a language model over HTTP");
  word->footer(
      "Example: headwise serve model --port 8080\n"
      "SIGTERM or Ctrl-C answers what has come, then ends; SIGHUP reads model and tokens again.\n"
      "Every option can stand in the environment: HEADWISE_SERVE_MAX_TOKENS for --max-tokens.");
  const auto r = std::make_shared<Request>();
  ServiceOptions& s = r->service;
  const auto option = [&](const char* name, auto& value, const char* help) {
    return word->add_option(name, value, help)->capture_default_str();
  };
  word->add_option("model", r->model,
                   "Folder of a recogniser, or a language model as headwise generate takes it")
      ->required();
  option("--port", r->port, "Port; 0 takes a free one");
  option("--listen", r->listen, "Numeric address; another than loopback needs a token");
  word->add_option("--unix", r->unix_path,
                   "A socket of this name in the file system, in the place of a port");
  word->add_option("--token-file", r->token_files,
                   "Tokens stand in this file, one a line; several files: give it again");
  word->add_option("--token-env", r->token_envs, "A token stands in this variable");
  word->add_flag("--no-token", r->no_token, "Ask for no token; on loopback alone");
  word->add_option("--allow-host", r->hosts,
                   "A Host by which clients may call, such as intents.example:443; * is any");
  word->add_option("--report", r->report, "A page of headwise report, served at / and /report");
  option("--top", r->top, "Labels of an answer with their probabilities")->check(CLI::Range(0, 1 << 20));
  option("--threads", r->threads, "Threads of the model; 0: HEADWISE_THREADS, else all CPUs");
  add_device_option(*word, r->device.name);
  const CLI::Range positive(Index{1}, Index{1} << 40);
  option("--batch-tokens", s.batcher.batch_tokens, "Tokens of requests joined into one batch")
      ->check(positive);
  option("--linger-ms", r->linger_ms, "How long a request waits for others")->check(CLI::Range(0, 1000));
  option("--queue-tokens", s.batcher.queue_tokens, "Tokens that may wait; above it 429")->check(positive);
  option("--max-tokens", s.batcher.request_tokens, "Tokens of one request")->check(positive);
  option("--max-explain-tokens", s.batcher.explain_tokens,
         "Tokens of one text to explain, or whose heads are watched")
      ->check(positive);
  option("--max-requests", r->requests, "Requests to a language model that wait or run; above it 429")
      ->check(positive);
  option("--dtype", r->dtype,
         "Of a language model's weights: stored (as the file has them), f32, bf16 or f16");
  option("--rows", r->rows, "Rows that meet its quantized weights: exact, or i8, which is faster");
  option("--kv-dtype", r->kv_dtype, "Of its keys and values: f32, bf16, f16, i8 or e4m3");
  option("--kv-mib", r->kv_mib, "MiB for its keys and values")->check(CLI::Range(Index{1}, Index{1} << 24));
  option("--max-texts", s.texts.texts, "Texts of one request")->check(positive);
  option("--max-text-bytes", s.texts.text_bytes, "Bytes of one text")->check(positive);
  option("--max-body-bytes", s.loop.http.body_bytes, "Bytes of one body")->check(positive);
  option("--max-connections", s.loop.connections, "Connections at once")->check(positive);
  option("--max-client-connections", s.loop.client_connections, "Connections of one client address at once")
      ->check(positive);
  word->add_option("--deadline-ms", r->deadline_ms,
                   "Time of one request, above it 504; else 10000, and 120000 of a language model")
      ->check(positive);
  option("--drain-ms", r->drain_ms, "Time to answer what has come after SIGTERM")->check(positive);
  word->add_flag("--log-requests", s.log_requests,
                 "A line for every request: client, route, status, time; never its text");
  option("--log-format", r->log_format, "text, or json for programs");
  add_tensor_option(*word, r->ranks);
  add_context_option(*word, r->ranks);
  add_order_option(*word, r->ranks);
  name_variables(*word);
  word->callback([r, &exit_code] { exit_code = serve(*r); });
}

}  // namespace headwise::cli
