#include "headwise/base/param.h"

#include <algorithm>
#include <cstring>

#include "headwise/base/random.h"

namespace headwise {
namespace {

/// FNV-1a: a parameter's own stream, whatever stands beside it.
std::uint64_t stream_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9e3779b97f4a7c15ull);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

/// In (-1, 1).
double uniform_at(std::uint64_t key, Index i) {
  const auto lo = static_cast<std::uint32_t>(i), hi = static_cast<std::uint32_t>(i >> 32);
  const Philox::Block r = Philox::block(key, {lo, hi, 0, 1});
  return (static_cast<double>(r[0]) + 0.5) * 0x1p-31 - 1.0;
}

void fill(const AnyView& v, Init init, std::uint64_t key) {
  const Index columns = v.rank == 2 ? v.size[1] : 1;
  for (Index i = 0; i < v.count(); ++i) {
    double x = init.size;
    switch (init.kind) {
      case Init::Kind::constant: break;
      case Init::Kind::identity: x = i / columns == i % columns ? 1 : 0; break;
      case Init::Kind::normal: x *= normal_at(key, i); break;
      case Init::Kind::uniform: x *= uniform_at(key, i); break;
    }
    store_double(v.data, v.dtype, i, x);
  }
}

/// Memory for one more tensor like `value`, all zeros.
AnyView zeros_like(const AnyView& value, Buffer& memory) {
  memory = Buffer(static_cast<std::size_t>(value.count() * size_of(value.dtype)));
  if (memory.size()) std::memset(memory.data(), 0, memory.size());
  AnyView v = value;
  v.data = memory.data();
  return v;
}

/// Memory for the gradients of `group`, one after the other, all zeros; the first keeps it.
void make_joined_grads(const std::vector<Param*>& group) {
  std::size_t bytes = 0;
  for (const Param* p : group) bytes += p->bytes();
  Buffer memory(bytes);
  if (bytes) std::memset(memory.data(), 0, bytes);
  std::byte* at = memory.data();
  for (Param* p : group) {
    if (p->rate > 0) p->grad = p->value, p->grad.data = at;
    p->grad_memory = {};
    at += p->bytes();
  }
  group.front()->grad_memory = std::move(memory);
}

}  // namespace

ParamSet::ParamSet(DType dtype, std::uint64_t seed) : dtype_(dtype), seed_(seed) {
  require(is_float(dtype), ErrorKind::bad_dtype, "params", "got ", dtype,
          "; parameters are f32, f64, bf16 or f16");
}

ParamSet ParamSet::blank(DType dtype, Index most) {
  ParamSet set(dtype);
  set.blank_ = true, set.most_ = most;
  return set;
}

Learned ParamSet::add(std::string_view name, std::initializer_list<Index> sizes, Init init) {
  const std::string full = prefix_.empty() ? std::string(name) : text(prefix_, '.', name);
  require(!name.empty(), ErrorKind::bad_argument, "params", "a parameter needs a name");
  require(!has(full), ErrorKind::bad_argument, "params", "\"", full,
          "\" is declared twice; open a scope with a name of its own");
  require(sizes.size() >= 1 && sizes.size() <= kMaxRank, ErrorKind::bad_shape, "params", "\"", full,
          "\" has ", sizes.size(), " sizes; 1 to ", kMaxRank, " are kept");
  Checked bytes(size_of(dtype_));
  for (const Index n : sizes) {
    require(n >= 0, ErrorKind::bad_shape, "params", "\"", full, "\" has a size of ", n, "; sizes start at 0");
    bytes = bytes * Checked(n);
  }
  require(bytes.ok, ErrorKind::out_of_memory, "params", "the sizes of \"", full,
          "\" multiply to more than any address space holds; use smaller ones");
  require(init.kind != Init::Kind::identity || (sizes.size() == 2 && *sizes.begin() == sizes.begin()[1]),
          ErrorKind::bad_shape, "params", "\"", full, "\" starts as the identity, so it must be square");
  const Index numbers = bytes.value / size_of(dtype_), before = count();
  require(numbers <= most_ - before, ErrorKind::bad_argument, "params", "\"", full, "\" has ", numbers,
          " numbers but ", most_ - before, " of the file's ", most_,
          " are left; its settings are those of another model, so take both from one");
  Param param;
  param.name = full;
  param.value_memory = Buffer(static_cast<std::size_t>(bytes.value));
  param.value = AnyView::packed(param.value_memory.data(), dtype_, sizes);
  if (!blank_)
    fill(param.value, init, stream_of(seed_, full));
  else if (param.value_memory.size())
    std::memset(param.value_memory.data(), 0, param.value_memory.size());
  if (grads_) param.grad = zeros_like(param.value, param.grad_memory);
  return Learned(all_.emplace_back(std::move(param)));
}

void ParamSet::join(std::initializer_list<Learned> parts) {
  std::vector<Param*> group;
  std::size_t bytes = 0;
  for (const Learned& part : parts) {
    if (!part.given()) continue;
    require(part.param_->bytes() == part.param_->value_memory.size(), ErrorKind::bad_argument, "params", "\"",
            part.name(), "\" is joined twice; join all of its neighbours at once");
    group.push_back(part.param_);
    bytes += part.param_->bytes();
  }
  if (group.size() < 2) return;
  Buffer memory(bytes);
  std::byte* at = memory.data();
  for (Param* p : group) {
    if (p->bytes()) std::memcpy(at, p->value.data, p->bytes());
    p->value.data = at;
    p->value_memory = {};
    at += p->bytes();
  }
  group.front()->value_memory = std::move(memory);
  if (grads_) make_joined_grads(group);
  joined_.push_back(std::move(group));
}

Learned ParamSet::find(std::string_view full_name) {
  for (Param& p : all_)
    if (p.name == full_name) return Learned(p);
  throw Error(ErrorKind::bad_argument, text("params: there is no \"", full_name, "\" among the ", all_.size(),
                                            " parameters; see ParamSet::all()"));
}

bool ParamSet::has(std::string_view full_name) const {
  for (const Param& p : all_)
    if (p.name == full_name) return true;
  return false;
}

Index ParamSet::count() const {
  Index n = 0;
  for (const Param& p : all_) n += p.value.count();
  return n;
}

Index ParamSet::set_rate(std::string_view front, double rate) {
  require(rate >= 0 && rate <= 1e6, ErrorKind::bad_argument, "params", "\"", front, "\" gets a rate of ",
          rate, "; give a factor from 0 to 1e6");
  Index count = 0;
  for (Param& p : all_)
    if (p.name.starts_with(front)) {
      p.rate = rate, ++count;
      if (rate == 0) p.grad = {};
    }
  if (grads_) make_grads();
  return count;
}

void ParamSet::make_grads() {
  grads_ = true;
  for (const std::vector<Param*>& group : joined_)
    if (std::any_of(group.begin(), group.end(),
                    [](const Param* p) { return !p->grad.given() && p->rate > 0; }))
      make_joined_grads(group);
  for (Param& p : all_)
    if (!p.grad.given() && p.rate > 0) p.grad = zeros_like(p.value, p.grad_memory);
}

void ParamSet::zero_grads() {
  for (Param& p : all_)
    if (p.grad_memory.size()) std::memset(p.grad_memory.data(), 0, p.grad_memory.size());
}

ParamSet::Scope::Scope(ParamSet& set, std::string_view name) : set_(set), outer_(set.prefix_.size()) {
  if (outer_) set_.prefix_ += '.';
  set_.prefix_ += name;
}
ParamSet::Scope::~Scope() { set_.prefix_.resize(outer_); }

}  // namespace headwise
