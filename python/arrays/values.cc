#include "python/arrays/values.h"

#include <nanobind/stl/string.h>

#include "python/arrays/array.h"

namespace headwise::python {
namespace {

/// Integers alone: a float that happens to be whole is not one, and neither is True.
bool index_of(nb::handle h, Index& value) {
  if (PyBool_Check(h.ptr()) || !PyIndex_Check(h.ptr())) return false;
  const Py_ssize_t n = PyNumber_AsSsize_t(h.ptr(), PyExc_OverflowError);
  if (n == -1 && PyErr_Occurred()) return PyErr_Clear(), false;
  value = n;
  return true;
}

}  // namespace

void refuse_type(ArgName at, nb::handle h, const char* need) {
  throw Error(ErrorKind::bad_dtype, text(at.op, ": ", at.name, " is ", type_word(h), "; give ", need));
}

double read_number(ArgName at, nb::handle h) {
  if (PyBool_Check(h.ptr()) || PyUnicode_Check(h.ptr())) refuse_type(at, h, "a number");
  const double x = PyFloat_AsDouble(h.ptr());
  if (x == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse_type(at, h, "a number");
  }
  return x;
}

Index read_index(ArgName at, nb::handle h) {
  Index value = 0;
  if (index_of(h, value)) return value;
  if (PyLong_Check(h.ptr()) && !PyBool_Check(h.ptr()))
    throw Error(ErrorKind::bad_argument,
                text(at.op, ": ", at.name, " is an int of more than 64 bits; give a smaller one"));
  refuse_type(at, h, "a 64-bit integer");
}

std::uint64_t read_seed(ArgName at, nb::handle h) {
  const nb::object number = nb::steal(PyNumber_Index(h.ptr()));
  if (number.is_valid()) {
    const unsigned long long seed = PyLong_AsUnsignedLongLong(number.ptr());
    if (!PyErr_Occurred()) return seed;
  }
  PyErr_Clear();
  throw Error(ErrorKind::bad_argument, text(at.op, ": ", at.name, " is ", nb::cast<std::string>(nb::str(h)),
                                            "; give an integer from 0 to 2^64 - 1"));
}

bool read_bool(ArgName at, nb::handle h) {
  if (h.ptr() == Py_True) return true;
  if (h.ptr() == Py_False) return false;
  refuse_type(at, h, "True or False");
}

std::string_view read_word(ArgName at, nb::handle h) {
  if (!PyUnicode_Check(h.ptr())) refuse_type(at, h, "a str");
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(h.ptr(), &size);
  if (!data) nb::raise_python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::vector<Index> read_indices(ArgName at, nb::handle h) {
  constexpr const char* need = "integers, as an int32 or int64 array [n] or a list";
  std::vector<Index> values;
  if (is_array(h)) {
    const Array a = read_array(at.op, at.name, h);
    require(a.view.dtype == DType::i32 || a.view.dtype == DType::i64, ErrorKind::bad_dtype, at.op, at.name,
            " is ", a.view, "; give ", need);
    require(a.view.rank == 1, ErrorKind::bad_shape, at.op, at.name, " is ", a.view, "; give ", need);
    values.resize(static_cast<std::size_t>(a.view.size[0]));
    for (Index i = 0; i < a.view.size[0]; ++i) {
      const Index offset = i * a.view.step[0];
      values[static_cast<std::size_t>(i)] = a.view.dtype == DType::i64
                                                ? static_cast<const Index*>(a.view.data)[offset]
                                                : static_cast<const std::int32_t*>(a.view.data)[offset];
    }
    return values;
  }
  if (PyUnicode_Check(h.ptr()) || !PySequence_Check(h.ptr())) refuse_type(at, h, need);
  for (const nb::handle item : nb::borrow<nb::sequence>(h)) {
    Index value = 0;
    if (!index_of(item, value))
      throw Error(ErrorKind::bad_dtype, text(at.op, ": ", at.name, " holds ",
                                             nb::cast<std::string>(nb::repr(item)), "; give ", need));
    values.push_back(value);
  }
  return values;
}

std::string read_kernels(ArgName at, nb::handle h) {
  if (PyUnicode_Check(h.ptr())) return std::string(read_word(at, h));
  if (!PySequence_Check(h.ptr())) refuse_type(at, h, "a str such as \"cpu/online,ref\"");
  std::string list;
  for (const nb::handle item : nb::borrow<nb::sequence>(h))
    list.append(list.empty() ? "" : ",").append(read_word(at, item));
  return list;
}

Device read_device(ArgName at, nb::handle h) {
  const nb::object word = nb::steal(PyObject_Str(h.ptr()));
  if (!word.is_valid()) nb::raise_python_error();
  const auto name = nb::cast<std::string>(word);
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda(0);
  int index = -1;
  if (name.starts_with("cuda:") && name.size() <= 8 &&
      name.find_first_not_of("0123456789", 5) == std::string::npos && name.size() > 5)
    index = std::stoi(name.substr(5));
  require(index >= 0 && index <= Device::kMostIndex, ErrorKind::bad_argument, at.op, at.name, " is \"", name,
          "\"; give \"cpu\", \"cuda\" or \"cuda:1\"");
  return Device::cuda(index);
}

}  // namespace headwise::python
