#include "headwise/model/gguf/blocks.h"

#include <cstring>

#include "headwise/base/half.h"

namespace headwise {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
float half_at(const std::byte* from) {
  f16 value;
  value.bits = load<std::uint16_t>(from);
  return static_cast<float>(value);
}
int byte_at(const std::byte* from, int i) { return std::to_integer<int>(from[i]); }
int low(const std::byte* from, int i) { return byte_at(from, i) & 15; }
int high(const std::byte* from, int i) { return byte_at(from, i) >> 4; }
/// a b + c of numbers whose product is exact in double: one rounding.
float joined(double a, int b, double c) { return static_cast<float>(a * b + c); }

void read_f32(const std::byte* b, float* to) noexcept { *to = load<float>(b); }
void read_f16(const std::byte* b, float* to) noexcept { *to = half_at(b); }
void read_bf16(const std::byte* b, float* to) noexcept {
  bf16 value;
  value.bits = load<std::uint16_t>(b);
  *to = static_cast<float>(value);
}

void read_q4_0(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b));
  for (int i = 0; i < 16; ++i) {
    to[i] = joined(d, low(b + 2, i) - 8, 0);
    to[i + 16] = joined(d, high(b + 2, i) - 8, 0);
  }
}
void read_q4_1(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b)), m = static_cast<double>(half_at(b + 2));
  for (int i = 0; i < 16; ++i) {
    to[i] = joined(d, low(b + 4, i), m);
    to[i + 16] = joined(d, high(b + 4, i), m);
  }
}
void read_q5_0(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b));
  const auto fifth = load<std::uint32_t>(b + 2);
  const auto bit = [&](int i) { return static_cast<int>((fifth >> i) & 1u) << 4; };
  for (int i = 0; i < 16; ++i) {
    to[i] = joined(d, (low(b + 6, i) | bit(i)) - 16, 0);
    to[i + 16] = joined(d, (high(b + 6, i) | bit(i + 16)) - 16, 0);
  }
}
void read_q8_0(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b));
  for (int i = 0; i < 32; ++i) to[i] = joined(d, load<std::int8_t>(b + 2 + i), 0);
}

/// Groups of 32: scale and minimum of group j in 6 bits each, packed in 12 bytes.
void read_q4_k(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b)), least = static_cast<double>(half_at(b + 2));
  const std::byte *packed = b + 4, *q = b + 16;
  for (int j = 0; j < 8; ++j) {
    int scale = byte_at(packed, j) & 63, minimum = byte_at(packed, j + 4) & 63;
    if (j >= 4) {
      scale = low(packed, j + 4) | (byte_at(packed, j - 4) >> 6) << 4;
      minimum = high(packed, j + 4) | (byte_at(packed, j) >> 6) << 4;
    }
    for (int i = 0; i < 32; ++i) {
      const int number = j % 2 == 0 ? low(q + j / 2 * 32, i) : high(q + j / 2 * 32, i);
      to[j * 32 + i] = joined(d * scale, number, -least * minimum);
    }
  }
}
/// Groups of 16: 128 numbers at a time, low four bits in 64 bytes, high two in 32.
void read_q6_k(const std::byte* b, float* to) noexcept {
  const double d = static_cast<double>(half_at(b + 208));
  for (int part = 0; part < 2; ++part) {
    const std::byte *four = b + part * 64, *two = b + 128 + part * 32, *scales = b + 192 + part * 8;
    for (int i = 0; i < 128; ++i) {
      const int line = i / 32, at = i % 32;
      const int nibble = line < 2 ? low(four + line * 32, at) : high(four + (line - 2) * 32, at);
      const int number = (nibble | ((byte_at(two, at) >> (2 * line)) & 3) << 4) - 32;
      to[part * 128 + i] = joined(d * load<std::int8_t>(scales + i / 16), number, 0);
    }
  }
}

constexpr GgufFormat kFormats[] = {
    {0, "F32", 1, 4, read_f32},     {1, "F16", 1, 2, read_f16},        {30, "BF16", 1, 2, read_bf16},
    {2, "Q4_0", 32, 18, read_q4_0}, {3, "Q4_1", 32, 20, read_q4_1},    {6, "Q5_0", 32, 22, read_q5_0},
    {8, "Q8_0", 32, 34, read_q8_0}, {12, "Q4_K", 256, 144, read_q4_k}, {14, "Q6_K", 256, 210, read_q6_k},
};

}  // namespace

std::span<const GgufFormat> gguf_formats() { return kFormats; }

const GgufFormat* find_gguf_format(std::uint32_t type) {
  for (const GgufFormat& f : kFormats)
    if (f.type == type) return &f;
  return nullptr;
}

}  // namespace headwise
