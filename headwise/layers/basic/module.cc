#include "headwise/layers/basic/module.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "headwise/base/arena.h"
#include "headwise/base/context.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/row/dropout.h"

namespace headwise {
namespace {

constexpr std::size_t kFirstChunk = std::size_t{1} << 20;
constexpr Index kTaskElements = 1 << 14;

std::size_t round_up_bytes(std::size_t n) { return (n + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign; }

/// One step of splitmix64: every bit of x reaches every bit of the answer.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

std::span<std::byte> StepMemory::take_bytes(std::size_t bytes) {
  const std::size_t room = round_up_bytes(bytes);
  ++pieces_;
  while (chunk_ < chunks_.size() && used_ + room > chunks_[chunk_].size()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max({room, capacity(), kFirstChunk}), device_);
  std::byte* data = chunks_[chunk_].data() + used_;
  used_ += room;
  return {data, bytes};
}

StepMemory& StepMemory::on(Device device) {
  if (device == device_) return *this;
  if (!other_ || other_->device_ != device) other_ = std::make_unique<StepMemory>(device);
  return *other_;
}

AnyView to(const InputView& x, StepMemory& memory, Context& ctx) {
  if (!x.given() || x.where() == memory.device()) return x;
  AnyView copy = x;
  copy.data = memory.take_bytes(static_cast<std::size_t>(x.count() * size_of(x.dtype))).data();
  copy.device = memory.device().byte();
  Index step = 1;
  for (int axis = x.rank - 1; axis >= 0; --axis) copy.step[axis] = step, step *= x.size[axis];
  to(x, copy, ctx);
  return copy;
}

AnyView StepMemory::take(DType dtype, std::initializer_list<Index> sizes) {
  Checked bytes(size_of(dtype));
  for (const Index n : sizes) bytes = bytes * Checked(n);
  require(bytes.ok && bytes.value < std::numeric_limits<Index>::max() / 2, ErrorKind::out_of_memory, "step",
          "an activation needs more bytes than any address space holds; use smaller sizes");
  return AnyView::packed(take_bytes(static_cast<std::size_t>(bytes.value)).data(), dtype, sizes).on(device_);
}

void StepMemory::reset() {
  chunk_ = used_ = 0;
  if (other_) other_->reset();
  if (chunks_.size() < 2) return;
  const std::size_t all = capacity();
  chunks_.clear();
  chunks_.emplace_back(all, device_);
}

std::size_t StepMemory::capacity() const noexcept {
  std::size_t sum = 0;
  for (const DeviceBuffer& b : chunks_) sum += b.size();
  return sum;
}

Index Sequences::longest() const {
  if (!ragged()) return tokens;
  Index most = 0;
  for (Index b = 0; b < count(); ++b) most = max_of(most, at(b + 1) - at(b));
  return most;
}

DropoutOptions Call::next_dropout(double p) {
  if (!training || p == 0) return {};
  return {.p = p,
          .seed = scramble(scramble(seed) ^ step),
          .site = next_site++,
          .first_row = sequences.held ? sequences.held->begin : 0};
}

void add(const AnyView& a, const AnyView& b, const AnyView& out, Context& ctx) {
  const bool same = a.rank == 2 && b.rank == 2 && out.rank == 2 && a.size[0] == b.size[0] &&
                    a.size[1] == b.size[1] && out.size[0] == a.size[0] && out.size[1] == a.size[1] &&
                    a.dtype == b.dtype && a.dtype == out.dtype;
  require(same, ErrorKind::bad_shape, "add", "got ", a, " and ", b, " into ", out,
          "; give three of one dtype and sizes");
  // Without a share that is dropped, dropout is the sum of its two inputs.
  if (!device_of("add", {{"a", a}, {"b", b}, {"out", out}}).is_cpu()) return dropout(a, b, {}, out, ctx);
  const Index rows = a.size[0], columns = a.size[1], grain = max_of(1, kTaskElements / max_of(1, columns));
  const auto sum = [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) {
        const T* x = static_cast<const T*>(a.data) + row * a.step[0];
        const T* y = static_cast<const T*>(b.data) + row * b.step[0];
        T* to = static_cast<T*>(out.data) + row * out.step[0];
        if constexpr (std::is_floating_point_v<T>) {
          if (a.step[1] == 1 && b.step[1] == 1 && out.step[1] == 1) {
            for (Index c = 0; c < columns; ++c) to[c] = x[c] + y[c];
            continue;
          }
        }
        for (Index c = 0; c < columns; ++c)
          to[c * out.step[1]] = cpu::narrow<T>(cpu::widen(x[c * a.step[1]]) + cpu::widen(y[c * b.step[1]]));
      }
    });
  };
  visit_float(a.dtype, sum);
}

void add_into(const AnyView& sum, const AnyView& x) {
  require(sum.count() == x.count(), ErrorKind::bad_shape, "add", "got ", x, " to add to ", sum,
          "; give as many numbers");
  require_here("add", "sum", sum), require_here("add", "x", x);
  for (Index i = 0; i < x.count(); ++i)
    store_double(sum.data, sum.dtype, i,
                 load_double(sum.data, sum.dtype, i) + load_double(x.data, x.dtype, i));
}

void copy_rows(const InputView& from, const AnyView& to) {
  require(from.dtype == to.dtype && from.count() == to.count(), ErrorKind::bad_shape, "copy", "got ", from,
          " for ", to, "; give both one dtype and size");
  require_here("copy", "from", from), require_here("copy", "to", to);
  if (from.count())
    std::memmove(to.data, from.data, static_cast<std::size_t>(from.count() * size_of(from.dtype)));
}

void fill_zeros(const AnyView& x) {
  require_here("fill", "x", x);
  if (x.count()) std::memset(x.data, 0, static_cast<std::size_t>(x.count() * size_of(x.dtype)));
}

AnyView as_sequences(const AnyView& rows, const Sequences& s) {
  AnyView v = rows;
  v.rank = 3;
  v.size[0] = s.ragged() ? 1 : s.batch, v.size[1] = s.ragged() ? rows.size[0] : s.tokens,
  v.size[2] = rows.size[1];
  v.step[0] = v.size[1] * rows.step[0], v.step[1] = rows.step[0], v.step[2] = rows.step[1];
  return v;
}

AnyView as_rows(const AnyView& v, Index columns) {
  return AnyView::packed(v.data, v.dtype, {columns ? v.count() / columns : 0, columns}).on(v.where());
}

void check_activation(std::string_view layer, const char* name, const AnyView& x, Index columns,
                      const Sequences& s) {
  require(x.rank == 2 && x.size[1] == columns, ErrorKind::bad_shape, layer, name, " is ", x,
          "; give [tokens ", columns, "]");
  require(is_float(x.dtype), ErrorKind::bad_dtype, layer, name, " is ", x, "; give a float type");
  if (s.ragged())
    require(s.offsets.rank == 1 && s.offsets.dtype == DType::i64 && s.offsets.size[0] >= 1,
            ErrorKind::bad_shape, layer, "offsets is ", s.offsets, "; give i64 [batch + 1]");
  require(s.held_rows() == x.size[0], ErrorKind::bad_shape, layer, name, " is ", x,
          " but its sequences hold ", s.held_rows(), " rows; give a row for each token");
}

}  // namespace headwise
