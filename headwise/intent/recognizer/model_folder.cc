#include "headwise/intent/recognizer/model_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"
#include "headwise/model/safetensors.h"
#include "headwise/train/checkpoints/crc32c.h"
#include "headwise/train/steps/optimizer.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "model";
constexpr Index kMostText = Index{64} << 20;

/// A sibling of `folder` that nobody else uses.
std::string sibling(const std::string& folder, std::string_view ending) {
  static std::atomic<unsigned> count{0};
  const fs::path path(folder);
  return (path.parent_path() / text('.', path.filename().string(), '.', ::getpid(), '.', count++, ending))
      .string();
}

/// Both names change places in one step where the system can; else the old one steps aside first.
void put_in_place(const std::string& part, const std::string& folder, std::string_view op) {
#if defined(SYS_renameat2)
  constexpr unsigned kExchange = 2;
  if (::syscall(SYS_renameat2, AT_FDCWD, part.c_str(), AT_FDCWD, folder.c_str(), kExchange) == 0) return;
#endif
  const std::string aside = sibling(folder, ".old");
  if (::rename(folder.c_str(), aside.c_str()) != 0) file_failed(op, folder, "step aside", errno);
  if (::rename(part.c_str(), folder.c_str()) != 0) {
    const int code = errno;
    ::rename(aside.c_str(), folder.c_str());
    file_failed(op, folder, "take this name", code);
  }
  ::rename(aside.c_str(), part.c_str());
}

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

std::string crc_of(const ParamSet& params) {
  Crc32c crc;
  for (const Param& p : params.all()) {
    crc.add(p.name);
    crc.add(std::span(static_cast<const std::byte*>(p.value.data),
                      static_cast<std::size_t>(p.value.count() * size_of(p.value.dtype))));
  }
  return std::to_string(crc.value());
}

/// Of the text files beside the weights: the order of labels or a piece's letters change what weights mean.
std::string crc_of(std::string_view config, std::string_view vocabulary, std::string_view labels) {
  Crc32c crc;
  for (const std::string_view content : {config, vocabulary, labels}) {
    crc.add(text(content.size(), '\n'));  // so that a line moved to the next file is seen
    crc.add(content);
  }
  return std::to_string(crc.value());
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::string content = read_text(path, kMostText, kOp);
  require(first_bad_utf8(content) < 0, ErrorKind::bad_argument, kOp, path, ": is no UTF-8; it is damaged");
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    lines.push_back(content.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// Before anything is allocated: a config cannot ask for memory its weights do not have.
void check_sizes(const RecognizerConfig& c, Index pieces, const Safetensors& file,
                 const std::string& folder) {
  const TransformerConfig& e = c.encoder;
  const auto rows = [&](const std::string& tensor, std::string_view what, Index wanted) {
    const Index got = file.has(tensor) ? file.entry(tensor).size[0] : 0;
    require(got == wanted, ErrorKind::bad_argument, kOp, folder, ": ", what, " is ", wanted, " but ", tensor,
            " has ", got, " rows; files of two models are mixed");
  };
  rows("embed.table", "the number of pieces in vocab.txt", pieces);
  rows("stack.norm.weight", "model_dim", e.final_norm ? e.model_dim : 0);
  if (e.positions == Positions::learned) rows("embed.positions", "max_tokens", e.max_tokens);
  if (e.token_types > 0) rows("embed.types", "token_types", e.token_types);
  if (c.ngrams.buckets > 0) rows("ngrams.table", "ngram_buckets", c.ngrams.buckets);
  if (c.pooling == Pooling::attention) rows("pooling.query", "pool_queries", c.pool_queries);
  if (c.cuts.on)
    rows("labels.bias", "one more than the number of lines in labels.txt", c.classes());
  else
    rows("labels.bias", "the number of lines in labels.txt", c.classes());
  const Index blocks = e.depth / max_of(1, e.share_layers);
  if (blocks > 0) rows("stack.layers.0.feed.in.weight", "feed_dim", e.feed_dim);
  require(blocks == 0 || file.has(text("stack.layers.", blocks - 1, ".norm1.weight")),
          ErrorKind::bad_argument, kOp, folder, ": depth is ", e.depth,
          " but model.safetensors has fewer layers; files of two models ", "are mixed");
}

}  // namespace

void write_file(const std::string& path, std::string_view content, std::string_view op) {
  File file = File::create(path, op);
  file.write(content);
  file.sync();
}

void replace_folder(const std::string& name, std::string_view mark, std::string_view op,
                    const std::function<void(const std::string& part)>& fill) {
  const std::string folder = without_slash(name);
  require(!folder.empty(), ErrorKind::bad_argument, op, "the folder has no name; give one");
  const fs::path parent = fs::path(folder).has_parent_path() ? fs::path(folder).parent_path() : ".";
  std::error_code code;
  fs::create_directories(parent, code);
  if (code) file_failed(op, parent.string(), "make this folder", code.value());
  const bool there = fs::exists(fs::symlink_status(folder));
  require(!there || (fs::is_directory(fs::symlink_status(folder)) &&
                     (fs::is_empty(folder) || fs::exists(fs::path(folder) / mark))),
          ErrorKind::bad_argument, op, folder, " is there and holds no ", mark,
          "; nothing was written: choose another name or move it away");
  const std::string part = sibling(folder, ".part");
  if (::mkdir(part.c_str(), 0777) != 0) file_failed(op, part, "make this folder", errno);
  try {
    fill(part);
    sync_folder(part, op);
    if (there)
      put_in_place(part, folder, op);
    else if (::rename(part.c_str(), folder.c_str()) != 0)
      file_failed(op, folder, "take this name", errno);
    sync_folder(parent.string(), op);
  } catch (...) {
    fs::remove_all(part, code);
    throw;
  }
  fs::remove_all(part, code);
}

void remove_folder(const std::string& name, std::string_view op) {
  const std::string folder = without_slash(name), away = sibling(folder, ".gone");
  if (::rename(folder.c_str(), away.c_str()) != 0) {
    if (errno == ENOENT) return;
    file_failed(op, folder, "take this folder away", errno);
  }
  std::error_code ignored;  // what cannot be deleted is hidden, and deleted by the next
  fs::remove_all(away, ignored);
}

void remove_left(const std::string& name) {
  const fs::path folder(without_slash(name));
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  const std::string front = text('.', folder.filename().string(), '.');
  std::vector<fs::path> parts, old;
  std::error_code ignored;
  for (fs::directory_iterator at(parent, ignored), end; !ignored && at != end; at.increment(ignored)) {
    const std::string file = at->path().filename().string();
    if (!file.starts_with(front)) continue;
    pid_t pid = 0;
    unsigned number = 0;
    const char *begin = file.data() + front.size(), *last = file.data() + file.size();
    const auto [dot, error] = std::from_chars(begin, last, pid);
    if (error != std::errc() || pid <= 0 || dot == last || *dot != '.') continue;
    const auto [rest, none] = std::from_chars(dot + 1, last, number);
    if (none != std::errc()) continue;
    // A process begins with nothing of its own: what has our number was another's, as in containers.
    if (pid != ::getpid() && (::kill(pid, 0) == 0 || errno != ESRCH)) continue;
    const std::string_view ending(rest, static_cast<std::size_t>(last - rest));
    if (ending == ".part" || ending == ".gone") parts.push_back(at->path());
    if (ending == ".old") old.push_back(at->path());
  }
  for (const fs::path& path : old)
    if (fs::exists(fs::symlink_status(folder)) || ::rename(path.c_str(), folder.c_str()) != 0)
      parts.push_back(path);
  for (const fs::path& path : parts) fs::remove_all(path, ignored);
}

void Recognizer::save(const std::string& folder, std::span<const FolderFile> files) const {
  require(params_.dtype() == DType::f32, ErrorKind::bad_dtype, kOp, "the parameters are ", params_.dtype(),
          "; a folder holds f32: save the masters");
  const std::string bad = first_not_finite(params_);
  require(bad.empty(), ErrorKind::bad_argument, kOp, bad, " holds a number that is not finite; nothing was ",
          "written: train with a smaller rate");
  std::vector<NamedTensor> tensors;
  for (const Param& p : params_.all()) tensors.push_back({p.name, p.value});
  std::string config = config_text(config_), vocabulary, labels;
  for (Index i = 0; i < tokenizer_.vocabulary().size(); ++i)
    vocabulary += tokenizer_.vocabulary().piece(static_cast<TokenId>(i)) + '\n';
  for (const std::string& label : config_.labels) labels += label + '\n';
  replace_folder(folder, "config.json", kOp, [&](const std::string& part) {
    write_safetensors(part + "/model.safetensors", tensors,
                      {{"format", "headwise"},
                       {"crc32c", crc_of(params_)},
                       {"files_crc32c", crc_of(config, vocabulary, labels)}});
    write_file(part + "/config.json", config, kOp);
    write_file(part + "/vocab.txt", vocabulary, kOp);
    write_file(part + "/labels.txt", labels, kOp);
    for (const FolderFile& f : files) write_file(part + '/' + f.name, f.content, kOp);
  });
}

Recognizer Recognizer::load(const std::string& name, DType dtype) {
  const std::string folder = without_slash(name);
  require(fs::is_directory(folder), ErrorKind::bad_argument, kOp, folder,
          ": is no folder; give one that `headwise train` wrote");
  for (const char* file : {"config.json", "vocab.txt", "labels.txt", "model.safetensors"})
    require(fs::exists(fs::path(folder) / file), ErrorKind::bad_argument, kOp, folder, ": has no ", file,
            "; it is no model folder, or a damaged one");
  RecognizerConfig config = parse_config(read_text(folder + "/config.json", kMostText, kOp),
                                         text(kOp, ": ", folder, "/config.json"));
  config.labels = lines_of(folder + "/labels.txt");
  Safetensors file(folder + "/model.safetensors", {.reading = Reading::later});
  Vocabulary vocabulary = Vocabulary::read(folder + "/vocab.txt");
  check_sizes(config, vocabulary.size(), file, folder);
  Index numbers = 0;  // the sizes of heads are bounded by what the file holds
  for (const SafetensorsEntry& e : file.entries()) numbers += (e.end - e.begin) / size_of(DType::f32);
  Recognizer model(std::move(config), std::move(vocabulary), ParamSet::blank(DType::f32, numbers));
  require(file.entries().size() == model.params_.all().size(), ErrorKind::bad_argument, kOp, folder,
          ": model.safetensors holds ", file.entries().size(), " tensors but the config makes ",
          model.params_.all().size(), "; files of two models are mixed");
  for (const Param& p : model.params_.all()) file.check(p.name, p.value);  // all, before any byte is read
  for (Param& p : model.params_.all()) file.read(p.name, p.value);
  const std::string* crc = file.metadata("crc32c");
  require(crc && *crc == crc_of(model.params_), ErrorKind::bad_argument, kOp, folder,
          ": the bytes of model.safetensors are not those that were written; it is damaged: train again or ",
          "take a copy");
  const std::string bad = first_not_finite(model.params_);
  require(bad.empty(), ErrorKind::bad_argument, kOp, folder, ": ", bad,
          " in model.safetensors holds a number that is not finite; train again or take a copy");
  const auto written = [&](const char* name_of) { return read_text(folder + name_of, kMostText, kOp); };
  const std::string* files = file.metadata("files_crc32c");  // older folders have none
  require(!files || *files == crc_of(written("/config.json"), written("/vocab.txt"), written("/labels.txt")),
          ErrorKind::bad_argument, kOp, folder,
          ": config.json, vocab.txt and labels.txt are not those that were written with model.safetensors; ",
          "one was changed: train again or take a copy");
  if (dtype == DType::f32) {
    model.pack_weights();
    return model;
  }
  Recognizer other(model.config_, model.tokenizer_.vocabulary(), model.params_, 0, dtype);
  for (Param& p : other.params_.all()) {
    const AnyView from = model.params_.find(p.name).value();
    for (Index i = 0; i < from.count(); ++i)
      store_double(p.value.data, dtype, i, load_double(from.data, from.dtype, i));
  }
  return other;
}

}  // namespace headwise
