#include "headwise/cli/args/device.h"

#include <fmt/format.h>

#include "headwise/cli/args/args.h"
#include "headwise/ops/device/named.h"

namespace headwise::cli {

void add_device_option(CLI::App& word, std::string& device) {
  word.add_option("--device", device,
                  "Where the encoder runs: cpu, cuda, cuda:1, or auto, which takes a GPU where one is")
      ->capture_default_str();
}

void add_device_options(CLI::App& word, DeviceChoice& choice) {
  add_device_option(word, choice.name);
  word.add_option("--dtype", choice.dtype, "What the encoder computes in on a GPU: f32 or bf16")
      ->capture_default_str();
}

Device named_device(const std::string& words, std::string_view op) {
  std::string why;
  const Device there = read_device(op, words, &why);
  if (!why.empty()) fmt::print(stderr, "headwise {}: device {}\n", op, why);
  return there;
}

void place_model(Recognizer& model, const DeviceChoice& choice, std::string_view op, int ranks,
                 Context& ctx) {
  const Device there = named_device(choice.name, op);
  const DType dtype = parse_dtype(choice.dtype);
  require(!there.is_cpu() || dtype == DType::f32, ErrorKind::unsupported, op, "--dtype is ", dtype,
          " but the encoder runs on the CPU, in f32; give --device cuda too");
  require(there.is_cpu() || ranks == 1, ErrorKind::unsupported, op, "the model is cut over ", ranks,
          " ranks, which run on the CPU; leave out --device, or use one rank");
  model.to(there, ctx, dtype);
}

}  // namespace headwise::cli
