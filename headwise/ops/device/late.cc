#include "headwise/ops/device/late.h"

#include <utility>

#include "headwise/ops/attention/choice.h"
#include "headwise/ops/device/layer_table.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "late";
const cuda::MemoryTable& table() { return cuda_layers().table->memory; }

}  // namespace

LateBytes::LateBytes(std::size_t bytes, Device device) : size_(bytes), device_(device) {
  require_there(kOp, device);
  require(!device.is_cpu(), ErrorKind::bad_argument, kOp, "the CPU has no bytes that come late");
  void* memory = nullptr;
  require_started(kOp, device, table().pin(bytes, device.index, &memory));
  data_ = static_cast<std::byte*>(memory);
}
LateBytes::LateBytes(LateBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mark_(std::exchange(other.mark_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_) {}
LateBytes& LateBytes::operator=(LateBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mark_, other.mark_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}
LateBytes::~LateBytes() {
  if (mark_ != nullptr) table().reached(device_.index, mark_), table().unmark(device_.index, mark_);
  if (data_ != nullptr) table().unpin(data_, device_.index);
}

void LateBytes::start(const void* from, Context& ctx) {
  require_started(kOp, device_, table().copy(from, data_, size_, device_.index, ctx.stream()));
  require_started(kOp, device_, table().mark(device_.index, ctx.stream(), &mark_));
}
const std::byte* LateBytes::wait() const {
  require(mark_ != nullptr, ErrorKind::bad_argument, kOp, "nothing was started");
  require_started(kOp, device_, table().reached(device_.index, mark_));
  return data_;
}

}  // namespace headwise
