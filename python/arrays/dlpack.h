// DLPack 1.x in the words of this project: the plain tensor struct and the table of C functions an array
// type offers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace headwise::python {

inline constexpr std::int32_t kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3;
inline constexpr std::uint8_t kDlInt = 0, kDlUInt = 1, kDlFloat = 2, kDlBfloat = 4, kDlBool = 6, kDlE4m3 = 10;

struct DlDevice {
  std::int32_t type, id;
};
struct DlDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t rank;
  DlDataType dtype;
  std::int64_t *shape, *strides;  // in elements
  std::uint64_t byte_offset;
};
/// An owning tensor; whoever takes it calls `drop` or hands it on.
struct DlManaged {
  std::uint32_t major, minor;
  void* manager;
  void (*drop)(DlManaged*);
  std::uint64_t flags;
  DlTensor tensor;
};

/// The capsule `__dlpack_c_exchange_api__` of an array type points here (DLPack 1.3; the order of the entries
/// is fixed).
struct ExchangeApi {
  std::uint32_t major, minor;
  void* older;
  /// Takes dtype, rank, shape and device of the prototype; 0 on success.
  int (*allocate)(DlTensor* prototype, DlManaged** out, void* error,
                  void (*set_error)(void* error, const char* kind, const char* message));
  int (*managed_of_object)(void* object, DlManaged** out);
  int (*object_of_managed)(DlManaged* tensor, void** object);  // takes the tensor over
  int (*view_of_object)(void* object, DlTensor* out);  // borrowed: shape and strides belong to the object
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

}  // namespace headwise::python
