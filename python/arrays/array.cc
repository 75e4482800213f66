#include "python/arrays/array.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <utility>

#include "python/arrays/dlpack.h"

namespace headwise::python {
namespace {

std::string word_of(nb::handle h) {
  const nb::object word = nb::steal(PyObject_Str(h.ptr()));
  if (!word.is_valid()) nb::raise_python_error();
  return nb::cast<std::string>(word);
}

/// What `__array_struct__` hands over (NumPy's array interface, version 3).
struct ArrayStruct {
  int two, rank;
  char kind;
  int item_bytes, flags;
  Py_intptr_t *shape, *steps;
  void* data;
  PyObject* description;
};
constexpr int kAligned = 0x100, kNativeOrder = 0x200, kWritable = 0x400;

/// NumPy's objects, looked up once; the module never lives longer than NumPy, so they are never released.
struct Numpy {
  PyTypeObject* ndarray;
  PyObject *empty, *array_struct, *dtype;
  std::array<PyObject*, 9> dtypes;  // by DType; bf16 and e4m3 are empty: they come from ml_dtypes

  static const Numpy& get() {
    static const Numpy numpy = [] {
      const nb::module_ np = nb::module_::import_("numpy");
      Numpy n{};
      n.ndarray = reinterpret_cast<PyTypeObject*>(nb::object(np.attr("ndarray")).release().ptr());
      n.empty = nb::object(np.attr("empty")).release().ptr();
      n.array_struct = PyUnicode_InternFromString("__array_struct__");
      n.dtype = PyUnicode_InternFromString("dtype");
      const char* names[] = {"float32", nullptr, "float16", "float64", "int32",
                             "int64",   "uint8", "int8",    nullptr};
      for (std::size_t i = 0; i < n.dtypes.size(); ++i)
        if (names[i]) n.dtypes[i] = nb::object(np.attr("dtype")(names[i])).release().ptr();
      return n;
    }();
    return numpy;
  }
};

bool is_numpy(nb::handle h) { return PyObject_TypeCheck(h.ptr(), Numpy::get().ndarray); }

/// True: `h` has this boolean attribute and it is set.
bool flag(nb::handle h, PyObject* name) {
  PyObject* value = PyObject_GetAttr(h.ptr(), name);
  if (!value) return PyErr_Clear(), false;
  const bool set = value == Py_True;
  Py_DECREF(value);
  return set;
}

[[noreturn]] void refuse_dtype(const char* op, const char* name, const std::string& got) {
  throw Error(ErrorKind::bad_dtype,
              text(op, ": ", name, " holds ", got, "; give float32, bfloat16, float16 or float64"));
}

void check_axis(const char* op, const char* name, int axis, Index size, Index step) {
  require(size <= 1 || step >= 0, ErrorKind::bad_shape, op, name, " has step ", step, " on axis ", axis,
          ", and steps must not be negative; make a contiguous copy of it");
}

void check_rank(const char* op, const char* name, int rank) {
  require(rank <= kMaxRank, ErrorKind::bad_shape, op, name, " has ", rank, " axes; at most ", kMaxRank,
          " are possible");
}

bool numpy_dtype(const ArrayStruct& a, nb::handle h, Array& out) {
  const int n = a.item_bytes;
  out.is_bool = a.kind == 'b';
  if (a.kind == 'f' && n == 4) return out.view.dtype = DType::f32, true;
  if (a.kind == 'f' && n == 2) return out.view.dtype = DType::f16, true;
  if (a.kind == 'f' && n == 8) return out.view.dtype = DType::f64, true;
  if (a.kind == 'i' && n == 8) return out.view.dtype = DType::i64, true;
  if (a.kind == 'i' && n == 4) return out.view.dtype = DType::i32, true;
  if (n == 1 && (a.kind == 'b' || a.kind == 'u')) return out.view.dtype = DType::u8, true;
  if (n == 1 && a.kind == 'i') return out.view.dtype = DType::i8, true;
  // ml_dtypes registers its types as void to C; only the dtype's name tells bfloat16 from two raw bytes.
  const auto named = [&](const char* name) {
    return nb::cast<std::string>(h.attr("dtype").attr("name")) == name;
  };
  if (n == 2 && named("bfloat16")) return out.view.dtype = DType::bf16, true;
  if (n == 1 && named("float8_e4m3fn")) return out.view.dtype = DType::e4m3, true;
  return false;
}

Array read_numpy(const char* op, const char* name, nb::handle h) {
  const nb::object capsule = nb::steal(PyObject_GetAttr(h.ptr(), Numpy::get().array_struct));
  if (!capsule.is_valid()) nb::raise_python_error();
  const auto* a = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (!a) nb::raise_python_error();
  check_rank(op, name, a->rank);
  Array out;
  if (!(a->flags & kNativeOrder) || !numpy_dtype(*a, h, out))
    refuse_dtype(op, name, word_of(nb::object(h.attr("dtype"))));
  require((a->flags & kAligned) != 0, ErrorKind::bad_shape, op, name, " does not lie on a multiple of ",
          a->item_bytes, " bytes; make an aligned copy of it");
  out.writable = (a->flags & kWritable) != 0;
  out.view.data = a->data;
  out.view.rank = a->rank;
  for (int axis = 0; axis < a->rank; ++axis) {
    const Index step = a->steps[axis], item = a->item_bytes;
    out.view.size[axis] = a->shape[axis];
    out.view.step[axis] = a->shape[axis] > 1 ? step / item : 0;
    check_axis(op, name, axis, a->shape[axis], step / item);
    require(a->shape[axis] <= 1 || step % item == 0, ErrorKind::bad_shape, op, name, " has a step of ", step,
            " bytes on axis ", axis, ", which is no multiple of its ", item,
            "-byte items; make a contiguous copy of it");
  }
  return out;
}

/// One array type that is not NumPy's: its exchange table (null where it has none), and whether it is
/// torch's.
struct TypeEntry {
  PyTypeObject* type = nullptr;
  const ExchangeApi* exchange = nullptr;
  bool torch = false;
};

bool is_torch_type(PyTypeObject* type) {
  const nb::handle mine(reinterpret_cast<PyObject*>(type));
  for (const nb::handle base : nb::borrow<nb::sequence>(mine.attr("__mro__"))) {
    const std::string name = word_of(nb::object(base.attr("__name__")));
    if ((name == "TensorBase" || name == "_TensorBase") &&
        word_of(nb::object(base.attr("__module__"))) == "torch._C")
      return true;
  }
  return false;
}

TypeEntry look_up_type(PyTypeObject* type) {
  TypeEntry entry{type, nullptr, is_torch_type(type)};
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api->major == 1 && api->view_of_object) entry.exchange = api;
  }
  Py_XDECREF(capsule);
  PyErr_Clear();
  return entry;
}

/// Types met so far, the last ones first; each holds a reference, so that its address names no other type
/// later.
const TypeEntry& entry_of(PyTypeObject* type) {
  static std::array<TypeEntry, 8> met;
  static std::size_t next = 0;
  for (const TypeEntry& e : met)
    if (e.type == type) return e;
  TypeEntry& e = met[next++ % met.size()];
  Py_XDECREF(e.type);
  Py_INCREF(type);
  return e = look_up_type(type);
}

std::string device_text(int type, int id) {
  const char* names[] = {"?", "cpu",    "cuda",  "cpu (pinned)", "opencl", "?",
                         "?", "vulkan", "metal", "vpi",          "rocm"};
  const char* name = type >= 0 && type <= 10 ? names[type] : "a device of its own kind";
  return type == 1 ? name : text(name, ":", id);
}

bool dlpack_dtype(DlDataType t, Array& out) {
  if (t.lanes != 1) return false;
  out.is_bool = t.code == kDlBool;
  if (t.code == kDlFloat && t.bits == 32) return out.view.dtype = DType::f32, true;
  if (t.code == kDlBfloat && t.bits == 16) return out.view.dtype = DType::bf16, true;
  if (t.code == kDlFloat && t.bits == 16) return out.view.dtype = DType::f16, true;
  if (t.code == kDlFloat && t.bits == 64) return out.view.dtype = DType::f64, true;
  if (t.code == kDlInt && t.bits == 64) return out.view.dtype = DType::i64, true;
  if (t.code == kDlInt && t.bits == 32) return out.view.dtype = DType::i32, true;
  if (t.bits == 8 && (t.code == kDlBool || t.code == kDlUInt)) return out.view.dtype = DType::u8, true;
  if (t.bits == 8 && t.code == kDlInt) return out.view.dtype = DType::i8, true;
  if (t.bits == 8 && t.code == kDlE4m3) return out.view.dtype = DType::e4m3, true;
  return false;
}

DlDataType to_dlpack(DType t) {
  const std::uint8_t code = t == DType::bf16   ? kDlBfloat
                            : is_float(t)      ? kDlFloat
                            : t == DType::u8   ? kDlUInt
                            : t == DType::e4m3 ? kDlE4m3
                                               : kDlInt;
  return {code, static_cast<std::uint8_t>(size_of(t) * 8), 1};
}

std::string dtype_text(nb::handle h) { return word_of(nb::object(h.attr("dtype"))); }

/// Only hw.torch records: a tensor that wants a gradient is refused rather than silently cut from its graph.
void check_grad(const char* op, const char* name, nb::handle h) {
  static PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  if (!flag(h, requires_grad)) return;
  static PyObject* is_enabled =
      nb::object(nb::module_::import_("torch").attr("is_grad_enabled")).release().ptr();
  const nb::object answer = nb::steal(PyObject_CallNoArgs(is_enabled));
  if (!answer.is_valid()) nb::raise_python_error();
  const bool on = answer.ptr() == Py_True;
  const bool recorded = std::string_view(op) == "attention";
  require(!on, ErrorKind::unsupported, op, name, " requires grad, which headwise.", op, " does not record; ",
          recorded ? "call headwise.torch.attention or pass " : "pass ", name, ".detach()");
}

/// Forward mode: a result without a tangent would be a derivative of 0. Costs one look at a module where no
/// level is open.
void check_tangent(const char* op, const char* name, nb::handle h) {
  static PyObject* forward_ad = nb::object(nb::module_::import_("torch.autograd.forward_ad")).release().ptr();
  static PyObject* current_level = PyUnicode_InternFromString("_current_level");
  const nb::object level = nb::steal(PyObject_GetAttr(forward_ad, current_level));
  if (!level.is_valid()) return PyErr_Clear();  // a torch that counts elsewhere
  if (PyLong_AsLong(level.ptr()) < 0) return;
  require(nb::handle(forward_ad).attr("unpack_dual")(h).attr("tangent").is_none(), ErrorKind::unsupported, op,
          name, " carries a tangent, and headwise has no forward-mode derivatives; take gradients backward ",
          "(headwise.torch.attention), or pass ", name, ".detach()");
}

/// True: torch negates what it reads of this tensor, such as the imaginary part of a conjugate; its memory
/// holds the other sign.
bool is_negated(nb::handle h) {
  static PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  const nb::object answer = nb::steal(PyObject_CallMethodObjArgs(h.ptr(), is_neg, nullptr));
  if (!answer.is_valid()) nb::raise_python_error();
  return answer.ptr() == Py_True;
}

/// Whether an argument may lie on a CUDA device.
enum class Place { cpu, anywhere };

Array read_dlpack(const char* op, const char* name, nb::handle h, const TypeEntry& entry, const DlTensor& t,
                  Place place) {
  const bool cuda = t.device.type == kDlCuda;
  if (t.device.type != kDlCpu && t.device.type != kDlCudaHost && !(cuda && place == Place::anywhere))
    throw Error(ErrorKind::bad_argument,
                text(op, ": ", name, " lies on ", device_text(t.device.type, t.device.id),
                     "; it is read on the CPU: move it there first"));
  check_rank(op, name, t.rank);
  Array out;
  out.kind = {entry.exchange, entry.exchange == nullptr, cuda ? Device::cuda(t.device.id) : Device()};
  if (!dlpack_dtype(t.dtype, out)) refuse_dtype(op, name, dtype_text(h));
  out.view.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  out.view.rank = t.rank;
  out.view.device = out.kind.device.byte();
  for (int axis = 0; axis < t.rank; ++axis) {
    out.view.size[axis] = t.shape[axis];
    out.view.step[axis] = t.shape[axis] > 1 ? t.strides[axis] : 0;
    check_axis(op, name, axis, t.shape[axis], t.strides[axis]);
  }
  require(t.data != nullptr || out.view.count() == 0 || t.rank == 0, ErrorKind::bad_argument, op, name,
          " has no memory behind it (a fake tensor); give a dense CPU tensor");
  require(!entry.torch || !is_negated(h), ErrorKind::bad_argument, op, name,
          " is a lazily negated view; call .resolve_neg() on it first");
  return out;
}

thread_local bool below_autograd = false;

Array read_exchange(const char* op, const char* name, nb::handle h, const TypeEntry& entry, Place place) {
  if (entry.torch && !below_autograd) check_grad(op, name, h), check_tangent(op, name, h);
  DlTensor t;
  if (entry.exchange->view_of_object(h.ptr(), &t) != 0) {
    PyErr_Clear();
    throw Error(ErrorKind::bad_argument,
                text(op, ": ", name, " is a tensor without plain memory (sparse, nested or ",
                     "on meta); give a dense CPU tensor"));
  }
  return read_dlpack(op, name, h, entry, t, place);
}

/// torch before its exchange table: through __dlpack__, some microseconds a tensor.
Array read_through_dlpack(const char* op, const char* name, nb::handle h, const TypeEntry& entry,
                          Place place) {
  check_grad(op, name, h);
  check_tangent(op, name, h);
  nb::ndarray<nb::ro> a;
  if (!nb::try_cast<nb::ndarray<nb::ro>>(h, a, false)) {
    PyErr_Clear();
    throw Error(ErrorKind::bad_argument,
                text(op, ": ", name, " is a tensor without plain memory (sparse, nested or ",
                     "on meta); give a dense CPU tensor"));
  }
  std::array<std::int64_t, 64> shape{}, strides{};
  const std::size_t rank = a.ndim();
  check_rank(op, name, static_cast<int>(rank));
  for (std::size_t i = 0; i < rank; ++i) shape[i] = static_cast<Index>(a.shape(i)), strides[i] = a.stride(i);
  const auto dtype = a.dtype();
  DlTensor t{};
  t.data = const_cast<void*>(a.data());
  t.device = {a.device_type(), a.device_id()};
  t.rank = static_cast<std::int32_t>(rank);
  t.dtype = {dtype.code, dtype.bits, dtype.lanes};
  t.shape = shape.data();
  t.strides = strides.data();
  return read_dlpack(op, name, h, entry, t, place);
}

void set_error(void* message, const char* kind, const char* what) {
  *static_cast<std::string*>(message) = text(kind, ": ", what);
}

MadeArray make_exchange(const ExchangeApi& api, Device device, DType dtype, const AnyView& shape) {
  std::array<std::int64_t, kMaxRank> sizes{};
  for (int axis = 0; axis < shape.rank; ++axis) sizes[static_cast<std::size_t>(axis)] = shape.size[axis];
  DlTensor prototype{};
  prototype.device = {device == Device() ? kDlCpu : kDlCuda, device.index};
  prototype.rank = shape.rank;
  prototype.dtype = to_dlpack(dtype);
  prototype.shape = sizes.data();
  DlManaged* managed = nullptr;
  std::string message;
  if (api.allocate(&prototype, &managed, &message, set_error) != 0)
    throw Error(ErrorKind::out_of_memory, text("array: needs ", size_of(dtype) * shape.count(),
                                               " bytes but the memory is not there: ", message));
  MadeArray made;
  made.view = shape.on(device);
  made.view.data = managed->tensor.data;
  void* object = nullptr;
  if (api.object_of_managed(managed, &object) != 0) nb::raise_python_error();
  made.object = nb::steal(static_cast<PyObject*>(object));
  return made;
}

nb::object size_tuple(const AnyView& shape) {
  nb::object sizes = nb::steal(PyTuple_New(shape.rank));
  for (int axis = 0; axis < shape.rank; ++axis)
    PyTuple_SetItem(sizes.ptr(), axis, PyLong_FromLongLong(shape.size[axis]));
  return sizes;
}

/// NumPy has no e4m3 of its own.
nb::object numpy_e4m3() {
  try {
    return nb::module_::import_("numpy").attr("dtype")(
        nb::module_::import_("ml_dtypes").attr("float8_e4m3fn"));
  } catch (const nb::python_error&) {
    throw Error(ErrorKind::bad_dtype,
                "array: NumPy has no e4m3; install ml_dtypes, which has, or give torch tensors");
  }
}

MadeArray make_numpy(nb::handle like, DType dtype, const AnyView& shape) {
  const Numpy& numpy = Numpy::get();
  PyObject* known = numpy.dtypes[static_cast<std::size_t>(dtype)];
  const nb::object description = known ? nb::borrow(known)
                                 : dtype == DType::e4m3
                                     ? numpy_e4m3()
                                     : nb::steal(PyObject_GetAttr(like.ptr(), numpy.dtype));
  const nb::object sizes = size_tuple(shape);
  MadeArray made;
  made.object = nb::handle(numpy.empty)(sizes, description);
  const nb::object capsule = nb::steal(PyObject_GetAttr(made.object.ptr(), numpy.array_struct));
  made.view = shape;
  made.view.data = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr))->data;
  return made;
}

MadeArray make_torch(nb::handle like, DType dtype, const AnyView& shape) {
  const char* names[] = {"float32", "bfloat16", "float16", "float64",      "int32",
                         "int64",   "uint8",    "int8",    "float8_e4m3fn"};
  const nb::object torch_dtype = nb::module_::import_("torch").attr(names[static_cast<std::size_t>(dtype)]);
  MadeArray made;
  made.object = like.attr("new_empty")(size_tuple(shape), nb::arg("dtype") = torch_dtype);
  made.view = shape;
  made.view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(made.object.attr("data_ptr")()));
  return made;
}

}  // namespace

BelowAutograd::BelowAutograd() : before_(std::exchange(below_autograd, true)) {}
BelowAutograd::~BelowAutograd() { below_autograd = before_; }

std::string type_word(nb::handle h) {
  const nb::handle type = h.type();
  const auto module = word_of(nb::object(type.attr("__module__")));
  const auto name = word_of(nb::object(type.attr("__qualname__")));
  const std::string whole = module == "builtins" ? name : module + "." + name;
  return (std::strchr("aeiou", whole[0]) ? "an " : "a ") + whole;
}

void refuse_kinds(const char* op, NamedArray a, NamedArray b) {
  const auto device = [&](const NamedArray& x) { return read_anywhere(op, x.name, x.object).kind.device; };
  if (!(device(a) == device(b)))
    throw Error(ErrorKind::bad_argument, text(op, ": ", a.name, " lies on ", device(a), " but ", b.name,
                                              " on ", device(b), "; bring them together"));
  throw Error(ErrorKind::bad_dtype, text(op, ": ", a.name, " is ", type_word(a.object), " but ", b.name,
                                         " is ", type_word(b.object), "; give arrays of one kind"));
}

bool is_array(nb::handle h) {
  if (is_numpy(h)) return true;
  const TypeEntry& entry = entry_of(Py_TYPE(h.ptr()));
  return entry.exchange != nullptr || entry.torch;
}

namespace {

Array read_at(const char* op, const char* name, nb::handle h, Place place) {
  if (is_numpy(h)) return read_numpy(op, name, h);
  const TypeEntry& entry = entry_of(Py_TYPE(h.ptr()));
  if (entry.exchange) return read_exchange(op, name, h, entry, place);
  if (entry.torch) return read_through_dlpack(op, name, h, entry, place);
  throw Error(ErrorKind::bad_dtype,
              text(op, ": ", name, " is ", type_word(h), "; give a NumPy array or a torch tensor",
                   " (numpy.from_dlpack reads others without a copy)"));
}

}  // namespace

Array read_array(const char* op, const char* name, nb::handle h) { return read_at(op, name, h, Place::cpu); }
Array read_anywhere(const char* op, const char* name, nb::handle h) {
  return read_at(op, name, h, Place::anywhere);
}

void* current_stream(const ArrayKind& kind) {
  void* stream = nullptr;
  if (kind.exchange && kind.exchange->current_stream &&
      kind.exchange->current_stream(kDlCuda, kind.device.index, &stream) == 0)
    return stream;
  const nb::object cuda = nb::module_::import_("torch").attr("cuda");
  return reinterpret_cast<void*>(
      nb::cast<std::uintptr_t>(cuda.attr("current_stream")(kind.device.index).attr("cuda_stream")));
}

MadeArray make_array(const ArrayKind& kind, nb::handle like, DType dtype, std::span<const Index> sizes) {
  AnyView shape;
  shape.dtype = dtype;
  shape.rank = static_cast<int>(sizes.size());
  Index step = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    shape.size[axis] = sizes[static_cast<std::size_t>(axis)];
    shape.step[axis] = step;
    step *= shape.size[axis];
  }
  if (kind.exchange) return make_exchange(*kind.exchange, kind.device, dtype, shape);
  return kind.torch ? make_torch(like, dtype, shape.on(kind.device)) : make_numpy(like, dtype, shape);
}

}  // namespace headwise::python
