// Fuzzes byte-pair encoding: any bytes train, code and come back; any bytes as a file load and print back, or
// give an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/base/error.h"
#include "headwise/text/bpe.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const Bpe learnt = Bpe::train(all, 256 + static_cast<Index>(size % 64));
  if (learnt.decode(learnt.encode(all)) != all) std::abort();
  try {
    const Bpe loaded = Bpe::parse(all, "fuzz");
    if (Bpe::parse(loaded.print(), "again").print() != loaded.print()) std::abort();
    if (loaded.decode(loaded.encode(all)) != all) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
