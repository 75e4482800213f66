// The one table from ErrorKind to Python's exceptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include "headwise/base/error.h"

namespace headwise::python {

inline PyObject* exception_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_shape:
    case ErrorKind::bad_argument: return PyExc_ValueError;
    case ErrorKind::bad_dtype: return PyExc_TypeError;
    case ErrorKind::unsupported: return PyExc_NotImplementedError;  // a RuntimeError
    case ErrorKind::out_of_workspace: return PyExc_RuntimeError;
    case ErrorKind::out_of_memory: return PyExc_MemoryError;
    case ErrorKind::device: return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

}  // namespace headwise::python
