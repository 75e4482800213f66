#include "headwise/ops/device/memory.h"

#include <cstring>
#include <utility>

#include "headwise/base/context.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/device/layer_table.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "memory";

const cuda::MemoryTable& table() { return cuda_layers().table->memory; }

bool packed(const AnyView& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    if (v.size[axis] > 1 && v.step[axis] != step) return false;
    step *= v.size[axis];
  }
  return true;
}
bool same_form(const AnyView& a, const AnyView& b) {
  bool same = a.rank == b.rank && a.dtype == b.dtype;
  for (int axis = 0; same && axis < a.rank; ++axis) same = a.size[axis] == b.size[axis];
  return same;
}
std::size_t bytes_in(const AnyView& v) { return static_cast<std::size_t>(v.count() * size_of(v.dtype)); }

}  // namespace

void require_there(std::string_view op, Device device) {
  if (device.is_cpu()) return;
  require(cuda_layers().table != nullptr, ErrorKind::unsupported, op, device,
          " cannot be used: ", cuda_layers().why);
  require(device.index >= 0 && device.index < cuda_backend().devices, ErrorKind::bad_argument, op, device,
          " is not there; this machine has ", cuda_backend().devices, ", counted from 0");
}

DeviceBuffer::DeviceBuffer(std::size_t bytes, Device device) : size_(bytes), device_(device) {
  require_there(kOp, device);
  if (device.is_cpu()) {
    host_ = Buffer(bytes);
    data_ = host_.data();
    return;
  }
  if (bytes == 0) return;
  void* memory = nullptr;
  const DeviceStatus status = table().allocate(bytes, device.index, &memory);
  if (status.code == cuda::kNoMemory) {
    std::size_t left = 0, all = 0;
    table().room(device.index, &left, &all);
    throw Error(ErrorKind::out_of_memory,
                text(kOp, ": ", bytes, " bytes were asked on ", device, ", which has ", left, " left of ",
                     all, "; use smaller sizes or smaller micro-batches"));
  }
  require_started(kOp, device, status);
  data_ = static_cast<std::byte*>(memory);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : host_(std::move(other.host_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(std::exchange(other.device_, Device())) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr && !device_.is_cpu()) table().release(data_, device_.index);
}

DeviceTensor::DeviceTensor(DType dtype, std::initializer_list<Index> sizes, Device device, Context& ctx) {
  Checked bytes(size_of(dtype));
  for (const Index n : sizes) bytes = bytes * Checked(n);
  require(sizes.size() <= kMaxRank && bytes.ok && bytes.value >= 0, ErrorKind::bad_shape, kOp, "a tensor of ",
          sizes.size(), " sizes was asked, which no memory holds; use fewer or smaller ones");
  buffer_ = DeviceBuffer(static_cast<std::size_t>(bytes.value), device);
  view_ = AnyView::packed(buffer_.data(), dtype, sizes).on(device);
  clear_bytes(view_, ctx);
}

void to(const InputView& x, const AnyView& target, Context& ctx) {
  require(same_form(x, target), ErrorKind::bad_shape, "to", "got ", x, " for ", target,
          "; give both one dtype and sizes");
  require(packed(x) && packed(target), ErrorKind::bad_argument, "to", "got ", x,
          " with steps that leave gaps or repeat; copy it to a row-major tensor first");
  const std::size_t bytes = bytes_in(x);
  if (bytes == 0) return;
  const Device there = x.on_cpu() ? target.where() : x.where();
  require_there("to", x.where()), require_there("to", target.where());
  if (there.is_cpu()) {
    std::memmove(target.data, x.data, bytes);
    return;
  }
  require_started("to", there, table().copy(x.data, target.data, bytes, there.index, ctx.stream()));
  if (target.on_cpu()) require_started("to", there, table().wait(there.index, ctx.stream()));
}

DeviceTensor to(const InputView& x, Device device, Context& ctx) {
  DeviceTensor copy;
  copy.buffer_ = DeviceBuffer(bytes_in(x), device);
  copy.view_ = x;
  copy.view_.data = copy.buffer_.data();
  copy.view_.device = device.byte();
  Index step = 1;
  for (int axis = x.rank - 1; axis >= 0; --axis) copy.view_.step[axis] = step, step *= x.size[axis];
  to(x, copy.view_, ctx);
  return copy;
}

void clear_bytes(const AnyView& v, Context& ctx) {
  const std::size_t bytes = bytes_in(v);
  if (bytes == 0) return;
  if (v.on_cpu()) {
    std::memset(v.data, 0, bytes);
    return;
  }
  require_there("clear", v.where());
  require_started("clear", v.where(), table().clear(v.data, bytes, v.where().index, ctx.stream()));
}

void wait(Device device, Context& ctx) {
  if (device.is_cpu()) return;
  require_there("wait", device);
  require_started("wait", device, table().wait(device.index, ctx.stream()));
}

}  // namespace headwise
