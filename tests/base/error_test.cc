// Errors and the context: sentences keep their form whatever the host's locale or environment says.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/error.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <locale>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

struct Grouped : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

/// Sets an environment variable for one scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(Error, RequireSaysWhatWasGot) {
  const int heads = 6, kv_heads = 4;
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [&] {
                          require(heads % kv_heads == 0, ErrorKind::bad_shape, "gqa", "heads (", heads,
                                  ") must be a multiple of kv_heads (", kv_heads, ")");
                        }),
            "gqa: heads (6) must be a multiple of kv_heads (4)");
  EXPECT_NO_THROW(require(true, ErrorKind::bad_shape, "gqa", "never"));
}

TEST(Error, TheHostsLocaleDoesNotReachSentences) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouped));
  EXPECT_EQ(text(1234567, " ", 0.5), "1234567 0.5");
  std::locale::global(before);
}

TEST(Context, ThreadsComeFromTheArgumentThenTheEnvironment) {
  EXPECT_EQ(Context({.threads = 3, .kernels = ""}).threads(), 3);
  const Environment set("HEADWISE_THREADS", "2");
  EXPECT_EQ(Context().threads(), 2);
  EXPECT_EQ(Context({.threads = 1, .kernels = ""}).threads(), 1);
}

TEST(Context, BadThreadCountsAreSentences) {
  for (const char* bad : {"0", "-1", "two", "3x", "99999", "99999999999999999999"}) {
    const Environment set("HEADWISE_THREADS", bad);
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Context ctx; }),
              text("context: HEADWISE_THREADS is \"", bad, "\"; give a number from 1 to 1024 or unset it"));
  }
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { Context ctx({.threads = -2, .kernels = ""}); }),
            "context: threads is -2; give a number from 1 to 1024, or 0 for all CPUs this process may use");
}

TEST(Context, KernelsComeFromTheArgumentThenTheEnvironment) {
  const Environment set("HEADWISE_KERNELS", "ref");
  EXPECT_EQ(Context({.threads = 1, .kernels = ""}).kernels(), "ref");
  EXPECT_EQ(Context({.threads = 1, .kernels = "cpu/online"}).kernels(), "cpu/online");
}

TEST(Context, WorkspaceGrowsAndStays) {
  Context ctx({.threads = 1, .kernels = ""});
  const auto small = ctx.workspace(1000);
  EXPECT_GE(small.size(), 1000u);
  EXPECT_EQ(ctx.workspace(10).data(), small.data());
  EXPECT_GE(ctx.workspace(1 << 20).size(), std::size_t{1} << 20);
}

TEST(Version, HasThreeNumbers) {
  int major = -1, minor = -1, patch = -1;
  char rest = 0;
  EXPECT_EQ(std::sscanf(kVersion, "%d.%d.%d%c", &major, &minor, &patch, &rest), 3) << kVersion;
}

}  // namespace
}  // namespace headwise
