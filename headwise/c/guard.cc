#include "headwise/c/guard.h"

#include <cstddef>
#include <new>

namespace headwise::c {
namespace {

constexpr std::size_t kSentenceBytes = 4096;
thread_local char sentence_buffer[kSentenceBytes] = "";

// A caller's version may be longer than ours, but not by this much: a wild struct_size must not walk through
// memory.
constexpr std::size_t kLongestStruct = 4096;

// Same table as DLPack's dlpack.h: a DLTensor may be handed over by a cast.
static_assert(offsetof(hw_tensor, data) == 0 && offsetof(hw_tensor, device) == 8 &&
              offsetof(hw_tensor, ndim) == 16);
static_assert(offsetof(hw_tensor, dtype) == 20 && offsetof(hw_tensor, shape) == 24);
static_assert(offsetof(hw_tensor, strides) == 32 && offsetof(hw_tensor, byte_offset) == 40 &&
              sizeof(hw_tensor) == 48);
static_assert(offsetof(hw_device, device_type) == 0 && offsetof(hw_device, device_id) == 4 &&
              sizeof(hw_device) == 8);
static_assert(offsetof(hw_dtype, code) == 0 && offsetof(hw_dtype, bits) == 1 &&
              offsetof(hw_dtype, lanes) == 2);

}  // namespace

void keep_sentence(std::string_view sentence) noexcept {
  std::size_t n = sentence.size() < kSentenceBytes ? sentence.size() : kSentenceBytes - 1;
  // Never ends inside a UTF-8 character.
  while (n < sentence.size() && n > 0 && (static_cast<unsigned char>(sentence[n]) & 0xc0u) == 0x80u) --n;
  std::memcpy(sentence_buffer, sentence.data(), n);
  sentence_buffer[n] = '\0';
}

hw_status status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::bad_shape: return HW_BAD_SHAPE;
    case ErrorKind::bad_dtype: return HW_BAD_DTYPE;
    case ErrorKind::bad_argument: return HW_BAD_ARGUMENT;
    case ErrorKind::unsupported: return HW_UNSUPPORTED;
    case ErrorKind::out_of_workspace: return HW_OUT_OF_WORKSPACE;
    case ErrorKind::out_of_memory: return HW_OUT_OF_MEMORY;
    case ErrorKind::device: return HW_DEVICE_FAILED;
  }
  return HW_INTERNAL;
}

hw_status caught(const char* entry) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    keep_sentence(e.what());
    return status_of(e.kind());
  } catch (const std::bad_alloc&) {
    char line[160];
    const std::string_view name(entry), rest(": out of memory; use smaller sizes or fewer threads");
    const std::size_t n = name.size() < 80 ? name.size() : 80;
    std::memcpy(line, name.data(), n);
    std::memcpy(line + n, rest.data(), rest.size());
    keep_sentence({line, n + rest.size()});
    return HW_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    keep_sentence(e.what());
    return HW_INTERNAL;
  } catch (...) {
    keep_sentence("an exception of unknown kind was caught; please report what was called");
    return HW_INTERNAL;
  }
}

std::size_t shared_size(const void* given, std::size_t ours, std::size_t align, const char* entry,
                        const char* what) {
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  require(size >= sizeof size && size <= kLongestStruct && size % align == 0, ErrorKind::bad_argument, entry,
          what, ".struct_size is ", size, "; set it to sizeof of the struct (", ours,
          " bytes in this version)");
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = ours; i < size; ++i)
    require(bytes[i] == 0, ErrorKind::bad_argument, entry, what, ".struct_size is ", size,
            " but this version knows ", ours, " bytes and byte ", i,
            " is not 0; use a newer library or leave later fields at 0");
  return size < ours ? size : ours;
}

DType dtype_from(hw_dtype t, const char* entry, const char* what) {
  if (t.lanes == 1) {
    if (t.code == HW_FLOAT && t.bits == 32) return DType::f32;
    if (t.code == HW_FLOAT && t.bits == 16) return DType::f16;
    if (t.code == HW_FLOAT && t.bits == 64) return DType::f64;
    if (t.code == HW_BFLOAT && t.bits == 16) return DType::bf16;
    if (t.code == HW_INT && t.bits == 32) return DType::i32;
    if (t.code == HW_INT && t.bits == 64) return DType::i64;
    if ((t.code == HW_UINT || t.code == HW_BOOL) && t.bits == 8) return DType::u8;
    if (t.code == HW_INT && t.bits == 8) return DType::i8;
    if (t.code == HW_E4M3 && t.bits == 8) return DType::e4m3;
  }
  throw Error(ErrorKind::bad_dtype,
              text(entry, ": ", what, " has dtype code ", int{t.code}, ", bits ", int{t.bits}, ", lanes ",
                   t.lanes, "; use f32, bf16, f16, f64, i32, i64, u8, i8, e4m3 or bool with one lane"));
}

hw_dtype dtype_to(DType t) noexcept {
  const auto make = [](int code, int bits) {
    return hw_dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  switch (t) {
    case DType::f32: return make(HW_FLOAT, 32);
    case DType::bf16: return make(HW_BFLOAT, 16);
    case DType::f16: return make(HW_FLOAT, 16);
    case DType::f64: return make(HW_FLOAT, 64);
    case DType::i32: return make(HW_INT, 32);
    case DType::i64: return make(HW_INT, 64);
    case DType::u8: return make(HW_UINT, 8);
    case DType::i8: return make(HW_INT, 8);
    case DType::e4m3: return make(HW_E4M3, 8);
  }
  return make(HW_FLOAT, 32);
}

Device device_from(hw_device device, const char* entry, const char* what) {
  if (device.device_type == HW_DEVICE_CPU) return Device::cpu();
  require(device.device_type == HW_DEVICE_CUDA, ErrorKind::bad_dtype, entry, what, " is on device type ",
          device.device_type, "; it may lie on the CPU (type ", HW_DEVICE_CPU + 0,
          ") or on a CUDA device (type ", HW_DEVICE_CUDA + 0, "): copy it there first");
  require(device.device_id >= 0 && device.device_id <= Device::kMostIndex, ErrorKind::bad_dtype, entry, what,
          " is on CUDA device ", device.device_id, "; their numbers run from 0 to ", Device::kMostIndex);
  return Device::cuda(device.device_id);
}

AnyView view_of(const hw_tensor* t, const char* entry, const char* what) {
  if (t != nullptr)
    require(t->device.device_type == HW_DEVICE_CPU, ErrorKind::bad_dtype, entry, what, " is on device type ",
            t->device.device_type, "; this call computes on the CPU (type ", HW_DEVICE_CPU + 0,
            "): copy it there first");
  return view_anywhere(t, entry, what);
}

AnyView view_anywhere(const hw_tensor* t, const char* entry, const char* what) {
  AnyView v;
  if (t == nullptr) return v;
  v.device = device_from(t->device, entry, what).byte();
  v.dtype = dtype_from(t->dtype, entry, what);
  require(t->ndim >= 0 && t->ndim <= kMaxRank, ErrorKind::bad_shape, entry, what, " has ", t->ndim,
          " axes; 0 to ", kMaxRank, " are possible");
  require(t->ndim == 0 || t->shape != nullptr, ErrorKind::bad_argument, entry, what, " has ", t->ndim,
          " axes but its shape is NULL; point it at their sizes");
  v.rank = t->ndim == 0 ? 1 : t->ndim;
  v.size[0] = v.step[0] = 1;
  Checked count(1), last(0);
  for (int axis = t->ndim - 1; axis >= 0; --axis) {
    const Index n = t->shape[axis];
    require(n >= 0, ErrorKind::bad_shape, entry, what, " has size ", n, " on axis ", axis,
            "; sizes start at 0");
    v.size[axis] = n;
    v.step[axis] = t->strides ? t->strides[axis] : count.value;
    if (n <= 1 && v.step[axis] < 0) v.step[axis] = 0;  // the stride of a single element is never used
    require(v.step[axis] >= 0, ErrorKind::bad_argument, entry, what, " has stride ", v.step[axis],
            " on axis ", axis, "; strides are 0 or more: copy the tensor in ascending order first");
    if (n > 0) last = last + Checked(n - 1) * Checked(v.step[axis]);
    count = count * Checked(n);
  }
  const Index width = size_of(v.dtype);
  const Checked end = (last + Checked(1)) * Checked(width);
  require(count.ok && end.ok, ErrorKind::bad_shape, entry, what,
          " spans more bytes than any address space holds; use smaller sizes or strides");
  const auto address =
      reinterpret_cast<std::uintptr_t>(t->data) + static_cast<std::uintptr_t>(t->byte_offset);
  if (count.value > 0) {
    require(t->data != nullptr, ErrorKind::bad_argument, entry, what, " has ", count.value,
            " elements but its data is NULL; point it at them");
    require(address % static_cast<std::uintptr_t>(width) == 0, ErrorKind::bad_argument, entry, what,
            " begins at an address that is no multiple of ", width, ", the size of ", v.dtype, "; align it");
  }
  v.data = t->data == nullptr ? nullptr : reinterpret_cast<void*>(address);
  return v;
}

void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length,
               const char* entry) {
  if (length != nullptr) *length = text.size();
  if (capacity == 0) {
    require_given(length, entry, "length (with capacity 0)");
    return;
  }
  require_given(buffer, entry, "buffer");
  require(text.size() < capacity, ErrorKind::bad_argument, entry, "needs ", text.size() + 1,
          " bytes but the buffer has ", capacity, "; ask with capacity 0 first");
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = '\0';
}

}  // namespace headwise::c

const char* hw_last_error(void) { return headwise::c::sentence_buffer; }
