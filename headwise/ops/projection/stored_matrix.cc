#include "headwise/ops/projection/stored_matrix.h"

#include <cstring>
#include <vector>

#include "headwise/base/arena.h"
#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/stored/stored.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "stored matrix";
constexpr Index kMost = Index{1} << 40;

}  // namespace

StoredMatrix::StoredMatrix(StoredFormat format, Index out, Index in, const Reader& read)
    : format_(format), out_(out), in_(in) {
  const StoredFacts& facts = facts_of(format);
  require(out >= 1 && in >= 1 && out <= kMost / in, ErrorKind::bad_shape, kOp, "got [", out, " ", in,
          "]; give two sizes of 1 or more");
  require(in % facts.numbers == 0, ErrorKind::bad_shape, kOp, "rows have ", in, " numbers; ", facts.name,
          " keeps them in blocks of ", facts.numbers);
  memory_ = Buffer(cpu::stored::bytes_of(format, out, in) + Arena::kAlign);
  constexpr Index kAtOnce = 64;
  const Index row_bytes = in / facts.numbers * facts.bytes;
  std::vector<std::byte> rows(static_cast<std::size_t>(min_of(kAtOnce, out) * row_bytes));
  for (Index first = 0; first < out; first += kAtOnce) {
    const Index count = min_of(kAtOnce, out - first);
    read(first, count, rows.data());
    cpu::stored::pack(format, in, first, count, rows.data(), const_cast<std::byte*>(units()));
  }
}

const std::byte* StoredMatrix::units() const noexcept {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % Arena::kAlign;
  return memory_.data() + (past > 0 ? Arena::kAlign - past : 0);
}

bool StoredMatrix::in_parts() const noexcept { return cpu::stored::in_parts(format_); }

std::uint64_t StoredMatrix::fingerprint() const noexcept {
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  const auto mix = [&](std::uint64_t word) {
    state = (state ^ word) * 0xff51afd7ed558ccdu;
    state ^= state >> 32;
  };
  for (const Index n : {static_cast<Index>(format_), out_, in_}) mix(static_cast<std::uint64_t>(n));
  if (out_ == 0) return state;
  const std::size_t bytes = cpu::stored::bytes_of(format_, out_, in_);  // a multiple of 32
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, units() + i, 8);
    mix(word);
  }
  return state;
}

void StoredMatrix::read_row(Index row, float* to) const {
  require(row >= 0 && row < out_, ErrorKind::bad_argument, kOp, "got row ", row, "; there are ", out_);
  cpu::stored::read_row(format_, in_, row, units(), to);
}

void StoredMatrix::multiply(const StoredProductArgs& a, Context& ctx) const {
  require(a.rows >= 0 && a.x.data != nullptr && a.out.data != nullptr, ErrorKind::bad_argument, kOp, "got ",
          a.rows, " rows; give x, out and 0 rows or more");
  require(!a.rounded || is_quantized(format_), ErrorKind::bad_argument, kOp,
          "rows of x are rounded for quantized weights alone; these are ", name_of(format_));
  cpu::stored::Product p{.format = format_,
                         .units = units(),
                         .m = a.rows,
                         .n = out_,
                         .k = in_,
                         .x = a.x.data,
                         .x_step = a.x.step,
                         .bias = a.bias,
                         .factor = a.factor.data,
                         .residual = a.residual.data,
                         .factor_step = a.factor.step,
                         .residual_step = a.residual.step,
                         .out = a.out.data,
                         .out_step = a.out.step,
                         .activation = a.activation,
                         .rounded = a.rounded};
  const FloatEnv env;
  cpu::stored::run(p, ctx.workspace(cpu::stored::workspace_of(p, ctx.threads())), ctx.pool());
}

}  // namespace headwise
