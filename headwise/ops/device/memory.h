// Memory of devices: owned buffers and tensors, and `to`, the one word that copies between the CPU and a CUDA
// device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>
#include <string_view>

#include "headwise/base/buffer.h"
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Throws, with the reason, unless the device is the CPU or a CUDA device of this machine.
void require_there(std::string_view op, Device device);

/// Owning, move-only memory of a CUDA device, or of the CPU. Not cleared.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error{out_of_memory} with the bytes asked and those the device has left.
  DeviceBuffer(std::size_t bytes, Device device);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  Device device() const noexcept { return device_; }

 private:
  Buffer host_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
};

/// A DeviceBuffer with a dtype and sizes, row-major, zero-filled.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DType dtype, std::initializer_list<Index> sizes, Device device, Context& ctx);
  const AnyView& view() noexcept { return view_; }
  ConstView view() const noexcept { return view_; }

 private:
  friend DeviceTensor to(const InputView& x, Device device, Context& ctx);
  DeviceBuffer buffer_;
  AnyView view_;
};

/// target = x, bit for bit: one dtype and sizes, both row-major, each on any device. On the context's stream,
/// but a copy that ends on the CPU has ended when this returns, and one that began there may be overwritten.
void to(const InputView& x, const AnyView& target, Context& ctx);
/// A copy of x, whose last axes lie side by side, on that device.
DeviceTensor to(const InputView& x, Device device, Context& ctx);

/// Zeros in every byte, on the context's stream.
void clear_bytes(const AnyView& v, Context& ctx);
/// Waits until all that was started on the context's stream has ended.
void wait(Device device, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
