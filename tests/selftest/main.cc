// headwise-selftest: laws, bit matrix and every kernel of this CPU against `ref`, with nothing but the core
// inside.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "headwise/base/version.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "tests/selftest/check.h"

namespace {

using namespace headwise;
using namespace headwise::selftest;

constexpr const char* kHelp =
    "headwise-selftest: is this build right on this CPU?\n"
    "  headwise-selftest            all checks at the chosen ISA level\n"
    "  headwise-selftest --quick    fewer sizes, for emulators\n"
    "  headwise-selftest --levels   names of the ISA levels this CPU has, weakest first\n"
    "HEADWISE_ISA=avx2 headwise-selftest forces a level. Ends in \"N passed, M failed\"; exit 1 when M > "
    "0.\n";

void timed(const char* name, const Options& options, void (*part)(const Options&)) {
  const auto begin = std::chrono::steady_clock::now();
  const Tally before = tally();
  part(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-8s %5d passed %5d failed %7.1f s\n", name, tally().passed - before.passed,
              tally().failed - before.failed, seconds);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--levels") == 0) {
      for (const cpu::IsaLevel& level : cpu::isa_levels())
        if (level.supported()) std::printf("%s\n", level.name);
      return 0;
    } else if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kHelp, stdout);
      return 0;
    } else {
      std::fprintf(stderr, "headwise-selftest: unknown option %s; see --help\n", argv[i]);
      return 2;
    }
  }
  try {
    std::printf("headwise-selftest %s, level %s%s\n", kVersion, cpu::chosen_isa().name,
                options.quick ? ", quick" : "");
  } catch (const Error& e) {
    std::fprintf(stderr, "headwise-selftest: %s\n", e.what());
    return 2;
  }
  timed("laws", options, check_laws);
  timed("bits", options, check_bits);
  timed("kernels", options, check_kernels);
  timed("backward", options, check_backward);
  timed("decode", options, check_decode);
  timed("mixed", options, check_mixed);
  timed("entmax", options, check_entmax);
  timed("products", options, check_products);
  timed("rows", options, check_rows);
  std::printf("%d passed, %d failed\n", tally().passed, tally().failed);
  return tally().failed > 0 || tally().passed == 0 ? 1 : 0;
}
