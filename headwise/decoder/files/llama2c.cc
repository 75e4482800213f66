// llama2.c's files: seven integers, then the weights in f32 in a fixed order.
#include <cstring>
#include <filesystem>
#include <map>

#include "headwise/decoder/files/source.h"
#include "headwise/model/file.h"
#include "headwise/text/pieces/score_bpe.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "llama2.c";

class Llama2cSource final : public DecoderSource {
 public:
  explicit Llama2cSource(const std::string& path) : file_(File::open_to_read(path, kOp)), path_(path) {
    std::int32_t head[7] = {};
    require(file_.bytes() >= Index{sizeof head}, ErrorKind::bad_argument, kOp, path, ": has ", file_.bytes(),
            " bytes; its seven sizes alone take ", sizeof head);
    file_.read_at(0, std::as_writable_bytes(std::span(head)));
    DecoderConfig& c = config_;
    c.family = "llama";
    c.model_dim = head[0], c.feed_dim = head[1], c.layers = head[2], c.heads = head[3], c.kv_heads = head[4];
    c.tied = head[5] > 0;
    c.vocabulary = head[5] > 0 ? head[5] : -Index{head[5]};
    c.positions = head[6];
    c.head_dim = c.heads > 0 && c.model_dim % c.heads == 0 ? c.model_dim / c.heads : 0;
    c.eps = 1e-5;
    c.rope = {.kind = RopeKind::interleaved, .base = 10000};
    c.windows.assign(static_cast<std::size_t>(c.layers > 0 && c.layers <= 1000 ? c.layers : 0), 0);
    c.check(text(kOp, ": ", path));
    place();
    find_tokenizer();
  }

  void check(const std::string& name, Index rows, Index columns) override {
    const auto at = places_.find(name);
    require(at != places_.end() && at->second.rows == rows && at->second.columns == columns,
            ErrorKind::bad_argument, kOp, path_, ": has no weight ", name, " [", rows, " ", columns, "]");
  }
  void read(const std::string& name, Index, Index, float* to) override {
    const Place& p = places_.at(name);
    const Index numbers = p.columns * (p.rows > 0 ? p.rows : 1);
    file_.read_at(p.begin, std::as_writable_bytes(std::span(to, static_cast<std::size_t>(numbers))));
  }
  void read_rows(const std::string& name, const SourceRows& part, std::byte* to) override {
    const Index row = 4 * part.columns;
    file_.read_at(places_.at(name).begin + part.first * row,
                  std::span(to, static_cast<std::size_t>(part.count * row)));
  }
  void check_nothing_left() const override {}  // the file's size was checked against its header

 private:
  struct Place {
    Index begin, rows, columns;
  };
  void add(const std::string& name, Index rows, Index columns) {
    places_[name] = {at_, rows, columns};
    at_ += 4 * columns * (rows > 0 ? rows : 1);
  }
  void add_all(const char* part, Index rows, Index columns) {
    for (Index layer = 0; layer < config_.layers; ++layer)
      add(text("layers.", layer, ".", part), rows, columns);
  }
  void place() {
    const DecoderConfig& c = config_;
    const Index d = c.model_dim, kv = c.kv_heads * c.head_dim;
    add("embed", c.vocabulary, d);
    add_all("norm_1.weight", 0, d);
    add_all("q.weight", d, d);
    add_all("k.weight", kv, d);
    add_all("v.weight", kv, d);
    add_all("o.weight", d, d);
    add_all("norm_2.weight", 0, d);
    add_all("gate.weight", c.feed_dim, d);
    add_all("down.weight", d, c.feed_dim);
    add_all("up.weight", c.feed_dim, d);
    add("norm.weight", 0, d);
    at_ += 4 * c.positions * c.head_dim;  // cos and sin of older versions; computed here
    if (!c.tied) add("head", c.vocabulary, d);
    require(at_ == file_.bytes(), ErrorKind::bad_argument, kOp, path_, ": has ", file_.bytes(),
            " bytes; its sizes ask for ", at_, "; it was cut short or is no llama2.c file");
  }
  void find_tokenizer() {
    const std::filesystem::path folder = folder_of(path_);
    std::error_code code;
    for (const std::string& name : {std::string("tokenizer.bin"), text("tok", config_.vocabulary, ".bin")})
      if (tokenizer_ == nullptr && std::filesystem::exists(folder / name, code))
        tokenizer_ = read_llama2c_tokenizer((folder / name).string(), config_.vocabulary);
  }

  File file_;
  std::string path_;
  std::map<std::string, Place> places_;
  Index at_ = 7 * 4;
};

}  // namespace

std::unique_ptr<DecoderSource> open_llama2c_decoder(const std::string& path) {
  return std::make_unique<Llama2cSource>(path);
}

}  // namespace headwise
