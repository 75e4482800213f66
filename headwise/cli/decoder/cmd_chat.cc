// headwise chat: a conversation with a language model, and what its heads do while it writes.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <random>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/decoder/chat_template.h"
#include "headwise/decoder/decoder_host.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string model, system, dtype = "stored", rows = "exact", kv_dtype = "f32";
  Index max_tokens = 512, kv_mib = 256, columns = 0;
  double temperature = 0.7, top_p = 0.95;
  std::optional<std::uint64_t> seed;
  int threads = 0;
  bool heads = false, no_heads = false;
};

/// A bar for a share from 0 to 1.
std::string_view bar(double share) {
  constexpr std::string_view kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double clean = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  return kBars[static_cast<std::size_t>(std::lround(clean * 8))];
}

/// How many columns of a terminal a character takes: the wide ones of East Asia and emoji two.
Index width_of(char32_t c) {
  const bool wide = (c >= 0x1100 && c <= 0x115f) || (c >= 0x2e80 && c <= 0xa4cf) ||
                    (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
                    (c >= 0xfe30 && c <= 0xfe6f) || (c >= 0xff00 && c <= 0xff60) ||
                    (c >= 0x1f300 && c <= 0x1faff) || (c >= 0x20000 && c <= 0x3fffd);
  return wide ? 2 : 1;
}

/// Text on the left, the heads of the last token on the right; the line that is being written is drawn again
/// with every token.
class Page {
 public:
  Page(bool live, Index columns, Index layers) : live_(live), cells_(std::min<Index>(layers, 12)) {
    left_ = std::max<Index>(columns - 2 * cells_ - 12, 20);
  }

  void add(std::string_view text, const HeadStats* heads, Index tokens) {
    if (heads != nullptr) strip_ = strip_of(*heads, tokens);
    if (!live_) {
      fmt::print("{}", text);
      std::fflush(stdout);
      return;
    }
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at + 1;
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) ++end;
      put(text.substr(at, end - at));
      at = end;
    }
    draw();
  }
  void end() {
    if (live_) draw();
    fmt::print("\n");
    std::fflush(stdout);
    line_.clear(), used_ = 0;
  }
  const std::string& strip() const { return strip_; }

 private:
  static char32_t value(std::string_view letter) {
    const auto first = static_cast<unsigned char>(letter[0]);
    char32_t c = letter.size() == 1 ? first : first & (0x7fu >> letter.size());
    for (std::size_t i = 1; i < letter.size(); ++i)
      c = c << 6 | (static_cast<unsigned char>(letter[i]) & 0x3fu);
    return c;
  }
  void put(std::string_view letter) {
    const Index width = width_of(value(letter));
    if (letter == "\n") return next_line("", 0);
    if (used_ + width > left_) {  // the last word goes with it where it is not the whole line
      const std::size_t space = line_.rfind(' ');
      std::string rest = space == std::string::npos ? "" : line_.substr(space + 1);
      if (space != std::string::npos) line_.erase(space);
      Index columns = 0;
      for (const char c : rest) columns += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
      next_line(std::move(rest), columns);
    }
    line_ += static_cast<unsigned char>(letter[0]) < 0x20 ? " " : std::string(letter);
    used_ += width;
  }
  void next_line(std::string rest, Index columns) {
    used_ -= columns;
    draw();
    fmt::print("\n");
    line_ = std::move(rest), used_ = columns;
  }
  void draw() const {
    fmt::print("\r\x1b[K{}\x1b[{}G\x1b[2m│ {}\x1b[0m", line_, left_ + 2, strip_);
    std::fflush(stdout);
  }
  /// Means of the heads of each layer, layers joined to at most 12 cells: entropy as a share of the most it
  /// can be, and weight on the first token.
  std::string strip_of(const HeadStats& h, Index tokens) const {
    const double most = std::log(static_cast<double>(std::max<Index>(tokens, 2)));
    const auto bars = [&](const std::vector<float>& values, double scale) {
      std::string out;
      const auto n = static_cast<Index>(values.size());
      for (Index cell = 0; cell < cells_; ++cell) {
        const Index from = cell * n / cells_, to = (cell + 1) * n / cells_;
        double sum = 0;
        for (Index i = from; i < to; ++i) sum += static_cast<double>(values[static_cast<std::size_t>(i)]);
        out += bar(sum / static_cast<double>(to - from) / scale);
      }
      return out;
    };
    return "H " + bars(h.entropy, most) + " S " + bars(h.first_mass, 1);
  }

  bool live_;
  Index cells_, left_ = 0, used_ = 0;
  std::string line_, strip_;
};

class Conversation {
 public:
  explicit Conversation(const Request& r)
      : request_(r),
        ctx_({.threads = r.threads}),
        host_(r.model, options_of(r), ctx_),
        chat_(ChatTemplate::find(host_.chat_template())),
        seed_(r.seed.value_or(std::random_device{}())) {
    host_.need_tokenizer("chat");
    require(
        chat_.has_value() || r.system.empty(), ErrorKind::unsupported, "chat",
        "the model has no template for conversations that is known, so --system has no place; leave it out");
    if (!r.system.empty()) messages_.push_back({"system", r.system});
  }

  int run() {
    const bool asks = ::isatty(STDIN_FILENO) != 0, shows = ::isatty(STDOUT_FILENO) != 0;
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const Index columns = request_.columns > 0 ? request_.columns : known ? size.ws_col : 80;
    const bool live = !request_.no_heads && (shows || request_.columns > 0);
    if (asks)
      fmt::print(
          "{}{}; an empty line or Ctrl-D ends\n", chat_ ? "Say something" : "Begin a text, it is continued",
          live ? ". Beside the text, by layer: H entropy of the heads, S their weight on the first token"
               : "");
    for (std::string line; ask(asks, line);) {
      if (line.empty() && asks) break;
      if (line.empty()) continue;
      Page page(live, columns, host_.model().config().layers * host_.model().config().heads);
      answer(line, page);
      if (!live && request_.heads) fmt::print("{}\n", page.strip());
    }
    return kDone;
  }

 private:
  static DecoderHostOptions options_of(const Request& r) {
    DecoderHostOptions o;
    o.model.dtype = weights_dtype_named("chat: --dtype", r.dtype);
    o.model.rounded_rows = rounded_rows_named("chat: --rows", r.rows);
    o.kv_dtype = kv_dtype_named("chat: --kv-dtype", r.kv_dtype);
    o.kv_bytes = r.kv_mib << 20;
    return o;
  }
  static bool ask(bool asks, std::string& line) {
    if (asks) fmt::print("\n> ");
    std::fflush(stdout);
    return static_cast<bool>(std::getline(std::cin, line));
  }
  std::vector<TokenId> prompt_of(const std::string& line) {
    if (!chat_) return host_.tokenizer()->encode(line);
    messages_.push_back({"user", line});
    return chat_->encode(messages_, *host_.tokenizer());
  }
  /// The oldest turns go when the conversation grows longer than the model.
  std::vector<TokenId> fitting_prompt(const std::string& line) {
    std::vector<TokenId> ids = prompt_of(line);
    const std::size_t first = !messages_.empty() && messages_[0].role == "system" ? 1 : 0;
    while (std::ssize(ids) + request_.max_tokens > host_.model().config().positions &&
           messages_.size() > first + 2) {
      messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first),
                      messages_.begin() + static_cast<std::ptrdiff_t>(first) + 2);
      ids = chat_->encode(messages_, *host_.tokenizer());
    }
    return ids;
  }
  void answer(const std::string& line, Page& page) {
    GenerateRequest g;
    g.prompt = fitting_prompt(line);
    const auto prompt = std::ssize(g.prompt);
    const Index room = host_.model().config().positions - prompt + 1;
    g.max_tokens = std::min(request_.max_tokens, std::max<Index>(room, 1));
    g.sampling.temperature = request_.temperature, g.sampling.top_p = request_.top_p;
    g.sampling.seed = seed_ + turns_++;
    g.watch = !request_.no_heads;
    const RequestId id[] = {host_.add(std::move(g))};
    ChatMessage said{"assistant", ""};
    Index tokens = prompt;
    for (bool more = true; more;)
      for (const GenerateEvent& e : host_.next(id, ctx_)) {
        tokens += std::ssize(e.tokens);
        said.content += e.text;
        page.add(e.text, e.heads.empty() ? nullptr : &e.heads.back(), tokens);
        more = e.finish == Finish::none;
        require(e.finish != Finish::error, ErrorKind::bad_argument, "chat", e.error);
      }
    page.end();
    if (chat_) messages_.push_back(std::move(said));
  }

  const Request& request_;
  Context ctx_;
  DecoderHost host_;
  std::optional<ChatTemplate> chat_;
  std::uint64_t seed_, turns_ = 0;
  std::vector<ChatMessage> messages_;
};

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("chat", "A conversation with a language model, and what its heads do");
  word->footer(
      "Example: headwise chat SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "Example: echo \"Say hello\" | headwise chat SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0\n"
      "A line of stdin is a message. A model without a known template continues each line instead.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder with config.json, a .gguf file or a llama2.c .bin file")
      ->required();
  word->add_option("--system", r->system, "What the model is told first");
  word->add_option("--max-tokens", r->max_tokens, "Tokens of an answer, at most")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--temperature", r->temperature, "0: the likeliest token always")->capture_default_str();
  word->add_option("--top-p", r->top_p, "Draw among the likeliest that sum up to it")->capture_default_str();
  word->add_option("--seed", r->seed, "Of the noise; none: one is drawn");
  word->add_option("--dtype", r->dtype, "Of the weights: stored (as the file has them), f32, bf16 or f16")
      ->capture_default_str();
  word->add_option("--rows", r->rows, "Rows that meet quantized weights: exact, or i8, which is faster")
      ->capture_default_str();
  word->add_option("--kv-dtype", r->kv_dtype, "Of keys and values: f32, bf16, f16, i8 or e4m3")
      ->capture_default_str();
  word->add_option("--kv-mib", r->kv_mib, "MiB for keys and values")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_option("--columns", r->columns, "Draw the heads for a terminal this wide, even into a pipe")
      ->check(size_check(40));
  word->add_flag("--heads", r->heads, "Without a terminal: a line of heads behind each answer");
  word->add_flag("--no-heads", r->no_heads, "The text alone");
  word->callback([r, &exit_code] { exit_code = Conversation(*r).run(); });
}

}  // namespace headwise::cli
