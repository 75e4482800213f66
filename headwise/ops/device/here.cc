#include "headwise/ops/device/here.h"

#include "headwise/base/error.h"

namespace headwise {

Device device_of(std::string_view op, std::initializer_list<GivenTensor> tensors) {
  const GivenTensor* first = nullptr;
  for (const GivenTensor& t : tensors) {
    if (!t.view.given()) continue;
    if (first == nullptr) {
      first = &t;
      continue;
    }
    require(t.view.device == first->view.device, ErrorKind::bad_argument, op, first->name, " lies on ",
            first->view.where(), " but ", t.name, " on ", t.view.where(), "; bring them together");
  }
  return first ? first->view.where() : Device::cpu();
}

cuda::Rows rows_on_device(std::string_view op, const char* name, const AnyView& v) {
  if (!v.given()) return {};
  require(is_float(v.dtype) && v.dtype != DType::f64, ErrorKind::bad_dtype, op, name, " is ", v, " on ",
          v.where(), "; give f32, bf16 or f16 there");
  cuda::Rows r{v.data, v.dtype, 0};
  const int last = v.rank - 1;
  bool fits = v.size[last] <= 1 || v.step[last] == 1;
  Index next = -1;  // the step of the axis behind, times its size
  for (int axis = last - 1; axis >= 0; --axis) {
    if (v.size[axis] <= 1) continue;
    if (next < 0)
      r.step = v.step[axis];
    else
      fits = fits && v.step[axis] == next;
    next = v.size[axis] * v.step[axis];
  }
  if (next < 0) r.step = column_count(v);
  require(fits, ErrorKind::unsupported, op, name, " is ", v, " on ", v.where(),
          " with rows that do not lie at one step from each other; copy it to a row-major tensor first");
  return r;
}

cuda::Numbers numbers_on_device(std::string_view op, const char* name, const AnyView& v) {
  if (!v.given()) return {};
  require(v.rank == 1 && (v.size[0] <= 1 || v.step[0] == 1) && is_float(v.dtype) && v.dtype != DType::f64,
          ErrorKind::unsupported, op, name, " is ", v, " on ", v.where(),
          "; give numbers side by side of f32, bf16 or f16 there");
  return {v.data, v.dtype};
}

float* sums_on_device(std::string_view op, const char* name, const AnyView& v) {
  if (!v.given()) return nullptr;
  require(v.rank == 1 && (v.size[0] <= 1 || v.step[0] == 1) && v.dtype == DType::f32, ErrorKind::bad_dtype,
          op, name, " is ", v, " on ", v.where(), "; give f32 side by side there");
  return static_cast<float*>(v.data);
}

}  // namespace headwise
