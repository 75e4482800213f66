// How every C entry ends well: catches everything, turns it into a status, keeps the sentence; and reads
// sized structs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <string_view>

#include "headwise/base/view.h"
#include "headwise/c/headwise.h"
#include "headwise/spec/packed_keys.h"

// libheadwise_text has entries of its own.
#pragma GCC visibility push(default)
namespace headwise::c {

/// Keeps `sentence` for hw_last_error() of this thread; allocates nothing, so it works when memory is gone.
void keep_sentence(std::string_view sentence) noexcept;
hw_status status_of(ErrorKind kind) noexcept;
/// To be called inside a catch block: the status of the exception in flight, its sentence kept.
hw_status caught(const char* entry) noexcept;

/// Runs an entry's body; nothing leaves it but a status.
template <class F>
hw_status guarded(const char* entry, F&& body) noexcept {
  try {
    body();
    return HW_OK;
  } catch (...) {
    return caught(entry);
  }
}

inline void require_given(const void* pointer, const char* entry, const char* what) {
  require(pointer != nullptr, ErrorKind::bad_argument, entry, what, " is NULL; give a valid pointer");
}

/// Checks struct_size and gives how many bytes the caller's struct shares with ours. A tail we do not know
/// must be 0. sizeof of any version is a multiple of `align`: another number ends inside a field.
std::size_t shared_size(const void* given, std::size_t ours, std::size_t align, const char* entry,
                        const char* what);

/// The caller's struct as ours: what it does not have is 0, the default of every field.
template <class T>
T sized_copy(const T* given, const char* entry, const char* what) {
  require_given(given, entry, what);
  T mine{};
  std::memcpy(&mine, given, shared_size(given, sizeof(T), alignof(T), entry, what));
  mine.struct_size = sizeof(T);
  return mine;
}

/// A DLTensor as a view; NULL is the empty view. A tensor of rank 0 becomes one of rank 1. One that does not
/// lie on the CPU is an error.
AnyView view_of(const hw_tensor* tensor, const char* entry, const char* what);
/// The same of a tensor on the CPU or a CUDA device; the op's checks say where it may lie.
AnyView view_anywhere(const hw_tensor* tensor, const char* entry, const char* what);
/// Where a tensor lies, as Device has it.
Device device_from(hw_device device, const char* entry, const char* what);
DType dtype_from(hw_dtype dtype, const char* entry, const char* what);
hw_dtype dtype_to(DType dtype) noexcept;

/// The description of packed keys, and back into the caller's struct.
PackedKeys packed_from(const hw_packed_keys* packed, const char* entry);
void packed_to(const PackedKeys& about, hw_packed_keys* packed, const char* entry);

/// Copies a text into the caller's buffer as hw_mask_text describes.
void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length,
               const char* entry);

}  // namespace headwise::c
#pragma GCC visibility pop
