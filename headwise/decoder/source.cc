#include "headwise/decoder/source.h"

#include <filesystem>

namespace headwise {

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
  return open_llama2c_decoder(path);
}

}  // namespace headwise
