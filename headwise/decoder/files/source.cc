#include "headwise/decoder/files/source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "headwise/model/ct2_file.h"

namespace headwise {

StoredFormat DecoderSource::format(const std::string&) const { return StoredFormat::f32; }

void DecoderSource::read_rows(const std::string& name, const SourceRows& part, std::byte* to) {
  if (held_name_ != name) {
    held_.resize(static_cast<std::size_t>(part.rows * part.columns));
    read(name, part.rows, part.columns, held_.data());
    held_name_ = name;
  }
  std::memcpy(to, held_.data() + part.first * part.columns,
              static_cast<std::size_t>(part.count * part.columns) * sizeof(float));
  if (part.first + part.count == part.rows) held_name_.clear(), held_ = {};
}

std::unique_ptr<DecoderSource> open_decoder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code code;
  if (fs::is_directory(path, code)) {
    require(fs::exists(fs::path(path) / "config.json", code), ErrorKind::bad_argument, "decoder", path,
            ": has no config.json; give a model's folder, a .gguf file or a llama2.c .bin file");
    return open_hf_decoder(path);
  }
  require(fs::is_regular_file(path, code), ErrorKind::bad_argument, "decoder", path,
          ": is not there; give a model's folder, a .gguf file or a llama2.c .bin file");
  if (path.ends_with(".gguf")) return open_gguf_decoder(path);
  require(path.ends_with(".bin"), ErrorKind::bad_argument, "decoder", path,
          ": is of no known kind; give a model's folder, a .gguf file or a llama2.c .bin file");
  const File file = File::open_to_read(path, "decoder");
  std::byte begin[72];
  const auto some =
      std::span(begin).first(static_cast<std::size_t>(std::min<Index>(file.bytes(), sizeof begin)));
  file.read_at(0, some);
  return begins_like_ct2(some) ? open_whisper_decoder(path) : open_llama2c_decoder(path);
}

}  // namespace headwise
