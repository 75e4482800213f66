// Array: a NumPy array or a torch tensor seen in place, and fresh ones of the same kind. Nothing here
// copies elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <span>
#include <string>

#include "headwise/base/device.h"
#include "headwise/base/view.h"

namespace headwise::python {

namespace nb = nanobind;

struct ExchangeApi;  // DLPack's table of C functions of one array type

/// Whose array it is; `owner` is one array of that kind, from which others take what only an array knows.
struct ArrayKind {
  const ExchangeApi* exchange = nullptr;  // given: tensors that trade through DLPack's C table
  bool torch = false;                     // else, true: torch without that table; false: NumPy
  Device device = {};                     // where its memory lies, and where fresh ones are made
  bool is_numpy() const { return exchange == nullptr && !torch; }
  friend bool operator==(const ArrayKind&, const ArrayKind&) = default;
};

struct Array {
  AnyView view;
  ArrayKind kind;
  bool writable = true;
  bool is_bool = false;  // view.dtype is u8
};

/// True for what read_array takes, without a look at the dtype or the memory.
bool is_array(nb::handle h);
/// The view of an array; throws Error in the form "op: name is ...". At most kMaxRank axes. On the CPU.
Array read_array(const char* op, const char* name, nb::handle h);
/// The same for what may lie on a CUDA device too.
Array read_anywhere(const char* op, const char* name, nb::handle h);
/// The stream that tensors like this one, on a CUDA device, are being worked on.
void* current_stream(const ArrayKind& kind);

/// While one lives, this thread stands below torch's autograd: what is read there may require a gradient, and
/// torch has looked after tangents.
class BelowAutograd {
 public:
  BelowAutograd();
  ~BelowAutograd();
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

 private:
  bool before_;
};

struct MadeArray {
  nb::object object;
  AnyView view;
};
/// Uninitialised, row-major. `like` is an array of that kind; bf16 in NumPy takes its dtype from there.
MadeArray make_array(const ArrayKind& kind, nb::handle like, DType dtype, std::span<const Index> sizes);

struct NamedArray {
  const char* name;
  nb::handle object;
};
/// "op: q is a numpy.ndarray but k is a torch.Tensor; give arrays of one kind", or the same of their devices.
[[noreturn]] void refuse_kinds(const char* op, NamedArray a, NamedArray b);

/// "a numpy.ndarray", "a torch.Tensor", "an int": a type as a reader knows it.
std::string type_word(nb::handle h);

}  // namespace headwise::python
