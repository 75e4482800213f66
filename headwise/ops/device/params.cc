#include "headwise/ops/device/params.h"

#include <algorithm>

#include "headwise/base/arena.h"

namespace headwise {
namespace {

bool begins(const std::string& name, std::span<const std::string_view> fronts) {
  return std::any_of(fronts.begin(), fronts.end(), [&](std::string_view f) { return name.starts_with(f); });
}
AnyView bytes_of(std::byte* data, std::size_t bytes, Device device) {
  return AnyView::packed(data, DType::u8, {static_cast<Index>(bytes)}).on(device);
}
std::size_t rounded(std::size_t n) { return (n + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign; }

}  // namespace

DeviceParams::DeviceParams(ParamSet& set, std::span<const std::string_view> fronts, Device device,
                           Context& ctx) {
  require_there("params", device);
  std::vector<Param*> params;
  for (Param& p : set.all())
    if (begins(p.name, fronts)) {
      require(p.value.on_cpu(), ErrorKind::bad_argument, "params", p.name, " lies on ", p.value.where(),
              " already; bring it home first");
      params.push_back(&p);
      moved_.push_back({&p, p.value, p.grad});
    }
  try {
    values_ = move(params, &Param::value_memory, &Param::value, device, ctx);
    grads_ = move(params, &Param::grad_memory, &Param::grad, device, ctx);
  } catch (...) {
    point_home();
    throw;
  }
}

/// Whole memories are copied, so that what lies side by side in one of them still does.
DeviceBuffer DeviceParams::move(std::span<Param* const> params, Buffer Param::*memory, AnyView Param::*view,
                                Device device, Context& ctx) {
  std::size_t all = 0;
  for (const Param* p : params) all += rounded((p->*memory).size());
  DeviceBuffer there(all, device);
  std::size_t at = 0;
  for (const Param* owner : params) {
    const Buffer& from = owner->*memory;
    if (from.size() == 0) continue;
    to(bytes_of(from.data(), from.size(), Device::cpu()), bytes_of(there.data() + at, from.size(), device),
       ctx);
    for (Param* p : params) {
      AnyView& v = p->*view;
      const auto* data = static_cast<const std::byte*>(v.data);
      if (!v.given() || !v.on_cpu() || data < from.data() || data >= from.data() + from.size()) continue;
      v.data = there.data() + at + (data - from.data());
      v = v.on(device);
    }
    at += rounded(from.size());
  }
  return there;
}

bool DeviceParams::holds(const Param& p) const {
  return std::any_of(moved_.begin(), moved_.end(), [&](const Moved& m) { return m.param == &p; });
}

void DeviceParams::fetch(Context& ctx) {
  for (const Moved& m : moved_) to(m.param->value, m.value, ctx);
}

ConstView DeviceParams::home_value(const Param& p) const {
  for (const Moved& m : moved_)
    if (m.param == &p) return m.value;
  return p.value;
}

void DeviceParams::zero_grads(Context& ctx) {
  if (grads_.size() > 0) clear_bytes(bytes_of(grads_.data(), grads_.size(), grads_.device()), ctx);
}

void DeviceParams::bring_home(Context& ctx) {
  for (const Moved& m : moved_) {
    to(m.param->value, m.value, ctx);
    if (m.grad.given()) to(m.param->grad, m.grad, ctx);
  }
  point_home();
}

void DeviceParams::point_home() noexcept {
  for (const Moved& m : moved_) m.param->value = m.value, m.param->grad = m.grad;
  *this = DeviceParams();
}

}  // namespace headwise
