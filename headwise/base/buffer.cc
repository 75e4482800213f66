#include "headwise/base/buffer.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "headwise/base/arena.h"
#include "headwise/base/random.h"

namespace headwise {
namespace {

/// Asks for large pages inside a large buffer: walking tables of small ones costs gradients of mixed heads a
/// tenth of their time. A system without them says no, and nothing is lost.
void prefer_large_pages(std::byte* data, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kPage = std::size_t{2} << 20;
  const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
  if (bytes >= 4 * kPage) madvise(data + before, (bytes - before) / kPage * kPage, MADV_HUGEPAGE);
#endif
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  // Aligned operator new rounds the size up and would wrap near the largest one.
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - Arena::kAlign)
    data_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{Arena::kAlign}, std::nothrow));
  require(data_ != nullptr, ErrorKind::out_of_memory, "buffer", bytes,
          " bytes were asked and the system has not that many; use smaller sizes or fewer threads");
  prefer_large_pages(data_, bytes);
}
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
Buffer::~Buffer() { ::operator delete (data_, std::align_val_t{Arena::kAlign}); }

Tensor::Tensor(DType dtype, std::initializer_list<Index> sizes) {
  require(sizes.size() <= kMaxRank, ErrorKind::bad_shape, "tensor", "got ", sizes.size(), " sizes; at most ",
          kMaxRank, " are kept");
  Checked bytes(size_of(dtype));
  for (Index n : sizes) {
    require(n >= 0, ErrorKind::bad_shape, "tensor", "got a size of ", n, "; sizes start at 0");
    bytes = bytes * Checked(n);
  }
  require(bytes.ok, ErrorKind::out_of_memory, "tensor", "the product of its ", sizes.size(),
          " sizes is more than any address space holds; use smaller sizes");
  buffer_ = Buffer(static_cast<std::size_t>(bytes.value));
  if (bytes.value) std::memset(buffer_.data(), 0, buffer_.size());
  view_ = AnyView::packed(buffer_.data(), dtype, sizes);
}

Tensor Tensor::clone() const {
  Tensor copy;
  copy.buffer_ = Buffer(buffer_.size());
  if (buffer_.size()) std::memcpy(copy.buffer_.data(), buffer_.data(), buffer_.size());
  copy.view_ = view_;
  copy.view_.data = copy.buffer_.data();
  return copy;
}

namespace {

/// ln(x), x > 0 and normal: 2 atanh((m - 1) / (m + 1)) by its series. libm's answer differs between machines;
/// this does not.
double log_same_everywhere(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.7071067811865476) m *= 2.0, --exponent;
  const double t = (m - 1.0) / (m + 1.0), t2 = t * t;  // |t| < 0.172: the term after t^23 is below 2^-60
  double sum = 0;
  for (int odd = 23; odd >= 1; odd -= 2) sum = sum * t2 + 1.0 / odd;
  return 2.0 * t * sum + exponent * 0.6931471805599453;
}

}  // namespace

// Marsaglia's polar method on the Philox stream of element i.
double normal_at(std::uint64_t seed, Index i) {
  const auto lo = static_cast<std::uint32_t>(i), hi = static_cast<std::uint32_t>(i >> 32);
  for (std::uint32_t attempt = 0;; ++attempt) {
    const Philox::Block r = Philox::block(seed, {lo, hi, attempt, 0});
    const double x = (static_cast<double>(r[0]) + 0.5) * 0x1p-31 - 1.0,
                 y = (static_cast<double>(r[1]) + 0.5) * 0x1p-31 - 1.0;
    const double s = x * x + y * y;
    if (s < 1.0) return x * std::sqrt(-2.0 * log_same_everywhere(s) / s);
  }
}

Tensor random_normal(std::initializer_list<Index> sizes, DType dtype, std::uint64_t seed) {
  Tensor t(dtype, sizes);
  for (Index i = 0; i < t.view().count(); ++i) store_double(t.view().data, dtype, i, normal_at(seed, i));
  return t;
}

}  // namespace headwise
