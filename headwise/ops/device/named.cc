#include "headwise/ops/device/named.h"

#include <charconv>

#include "headwise/base/error.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/device/layer_table.h"
#include "headwise/ops/device/memory.h"

namespace headwise {

Device read_device(std::string_view op, std::string_view words, std::string* why) {
  if (words.empty() || words == "cpu") return Device::cpu();
  if (words == "auto") {
    const CudaLayers& layers = cuda_layers();
    const bool there = layers.table != nullptr;
    if (why) *why = there ? "cuda:0: " + cuda_device_words(0) : "the CPU: " + layers.why;
    return there ? Device::cuda(0) : Device::cpu();
  }
  int index = words == "cuda" ? 0 : -1;
  if (words.starts_with("cuda:")) {
    const std::string_view number = words.substr(5);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || end != number.data() + number.size()) index = -1;
  }
  require(index >= 0 && index <= Device::kMostIndex, ErrorKind::bad_argument, op, "device is \"", words,
          "\"; give cpu, cuda, cuda:0 and on, or auto");
  require_there(op, Device::cuda(index));
  return Device::cuda(index);
}

std::string words_of(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace headwise
