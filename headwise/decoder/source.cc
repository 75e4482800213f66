#include "headwise/decoder/source.h"

#include <filesystem>

namespace headwise {

std::unique_ptr<DecoderSource> open_decoder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code code;
  require(fs::is_regular_file(path, code), ErrorKind::bad_argument, "decoder", path,
          ": is not there; give a .gguf file or a llama2.c .bin file");
  if (path.ends_with(".gguf")) return open_gguf_decoder(path);
  require(path.ends_with(".bin"), ErrorKind::bad_argument, "decoder", path,
          ": is of no known kind; give a .gguf file or a llama2.c .bin file");
  return open_llama2c_decoder(path);
}

}  // namespace headwise
