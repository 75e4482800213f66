// The memory of the double of a device, and its kernels of losses, bags, pooling and optimizers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <map>

#include "headwise/kernels/cuda/table/rows.h"

namespace headwise::fake {

using cuda::Status;

inline constexpr std::size_t kAll = std::size_t{256} << 20, kAlign = 256;

/// The device's memory: shut but while one of its functions runs. HEADWISE_FAKE_BUFFERS: it holds as many,
/// whatever their bytes.
class Memory {
 public:
  static Memory& one() {
    static Memory memory;
    return memory;
  }
  void open() { mprotect(data_, kAll, PROT_READ | PROT_WRITE); }
  void shut() { mprotect(data_, kAll, PROT_NONE); }
  void* take(std::size_t bytes) {
    const char* most = std::getenv("HEADWISE_FAKE_BUFFERS");
    if (most && taken_.size() >= std::strtoull(most, nullptr, 10)) return nullptr;
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    std::size_t at = 0;
    for (const auto& [begin, size] : taken_) {
      if (at + bytes <= begin) break;
      at = begin + size;
    }
    if (at + bytes > kAll) return nullptr;
    taken_[at] = bytes;
    return data_ + at;
  }
  void give(void* p) { taken_.erase(static_cast<std::size_t>(static_cast<std::byte*>(p) - data_)); }
  std::size_t left() const {
    std::size_t sum = kAll;
    for (const auto& piece : taken_) sum -= piece.second;
    return sum;
  }

 private:
  Memory()
      : data_(static_cast<std::byte*>(
            mmap(nullptr, kAll, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  std::byte* data_;
  std::map<std::size_t, std::size_t> taken_;
};

template <class Body>
Status opened(Body&& body) {
  Memory::one().open();
  body();
  Memory::one().shut();
  return {};
}

inline double get(const cuda::Rows& r, Index row, Index c) {
  return load_double(r.data, r.dtype, row * r.step + c);
}
inline void put(const cuda::Rows& r, Index row, Index c, double x) {
  store_double(r.data, r.dtype, row * r.step + c, x);
}

Status bag(const cuda::BagTask& t, int, void*);
Status pool(const cuda::PoolTask& t, int, void*);
Status cross_entropy(const cuda::LossTask& t, int, void*);
Status binary_cross_entropy(const cuda::BinaryLossTask& t, int, void*);
Status adamw(const cuda::AdamWTask& t, int, void*);
Status sgd(const cuda::SgdTask& t, int, void*);
Status norm_of(const cuda::NormOfTask& t, int, void*);

}  // namespace headwise::fake
