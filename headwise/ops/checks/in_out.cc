#include "headwise/ops/checks/in_out.h"

#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

bool same_sizes(const AnyView& a, const AnyView& b) {
  bool same = a.rank == b.rank;
  for (int axis = 0; same && axis < a.rank; ++axis) same = a.size[axis] == b.size[axis];
  return same;
}
bool same_places(const AnyView& a, const AnyView& b) {
  bool same = a.data == b.data;
  for (int axis = 0; same && axis < a.rank; ++axis) same = a.size[axis] <= 1 || a.step[axis] == b.step[axis];
  return same;
}

}  // namespace

void check_memory(std::string_view op, std::string_view name, const AnyView& v) {
  require_here(op, name, v);
  for (int axis = 0; axis < v.rank; ++axis) {
    require(v.size[axis] >= 0, ErrorKind::bad_shape, op, name, " has a size of ", v.size[axis], " on axis ",
            axis, "; sizes start at 0");
    require(v.step[axis] >= 0, ErrorKind::bad_shape, op, name, " has a step of ", v.step[axis], " on axis ",
            axis, "; steps start at 0, copy the tensor first");
  }
  const Checked reach = reach_of(v);
  require(reach.ok, ErrorKind::bad_shape, op, name, " is ", v,
          " and its last element is beyond any address; check its steps");
  require(v.data != nullptr || reach.value == 0, ErrorKind::bad_argument, op, name, " is ", v,
          " without memory; give its address");
}

void check_in_out(std::string_view op, const AnyView& x, const AnyView& out, std::string_view x_name,
                  std::string_view out_name) {
  require(is_float(x.dtype), ErrorKind::bad_dtype, op, x_name, " is ", x, "; give f32, bf16, f16 or f64");
  check_memory(op, x_name, x);
  require(out.dtype == x.dtype && same_sizes(x, out),
          out.dtype == x.dtype ? ErrorKind::bad_shape : ErrorKind::bad_dtype, op, out_name, " is ", out,
          " but ", x_name, " is ", x, "; give ", out_name, " the dtype and sizes of ", x_name);
  check_memory(op, out_name, out);
  require(each_element_once(out), ErrorKind::bad_argument, op, out_name, " is ", out,
          " with steps that put several elements in one place; give each its own");
  require(same_places(x, out) || !may_share_bytes(x, out), ErrorKind::bad_argument, op, out_name,
          " overlaps ", x_name, " without being ", x_name, "; give it memory of its own, or ", x_name,
          " itself to work in place");
}

void check_apart(std::string_view op, const AnyView& out, std::string_view name, const AnyView& v,
                 std::string_view out_name) {
  require(!may_share_bytes(out, v), ErrorKind::bad_argument, op, out_name, " overlaps ", name,
          "; give it memory of its own");
}

}  // namespace headwise
