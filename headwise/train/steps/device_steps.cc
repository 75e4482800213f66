#include "headwise/train/steps/device_steps.h"

#include <algorithm>
#include <cstddef>

#include "headwise/base/arena.h"
#include "headwise/base/context.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

constexpr std::string_view kAll[] = {""};

Index aligned(Index n) {
  constexpr auto kAlign = static_cast<Index>(Arena::kAlign);
  return (n + kAlign - 1) / kAlign * kAlign;
}
AnyView numbers(std::byte* data, Index count, Device device) {
  return AnyView::packed(data, DType::f32, {count}).on(device);
}
AnyView bytes_of(std::byte* data, std::size_t bytes, Device device) {
  return AnyView::packed(data, DType::u8, {static_cast<Index>(bytes)}).on(device);
}
AnyView bytes_at_home(const void* data, std::size_t bytes) {
  // Read alone: a view has one kind of address.
  return bytes_of(static_cast<std::byte*>(const_cast<void*>(data)), bytes, Device::cpu());
}

/// Where each parameter's gradient begins, in bytes of f32: side by side where the values are.
std::vector<Index> gradient_places(const ParamSet& set, Index* all) {
  std::vector<Index> places(set.all().size(), -1);
  const Index width = size_of(set.dtype());
  *all = 0;
  for (const Param& owner : set.all()) {
    const std::byte *begin = owner.value_memory.data(), *end = begin + owner.value_memory.size();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Param& p = set.all()[i];
      const auto* data = static_cast<const std::byte*>(p.value.data);
      if (p.rate > 0 && p.value.count() > 0 && data >= begin && data < end)
        places[i] = *all + (data - begin) / width * size_of(DType::f32);
    }
    *all += aligned((end - begin) / width * size_of(DType::f32));
  }
  return places;
}

}  // namespace

DeviceSteps::DeviceSteps(ParamSet& params, ParamSet* image, const State& state, Device device, Context& ctx)
    : params_(&params), image_set_(image), ctx_(ctx) {
  require(params.dtype() == DType::f32, ErrorKind::bad_dtype, "optimizer", "the parameters are ",
          params.dtype(), "; on ", device, " steps are taken in f32");
  for (const ParamSet* set : {params_, image_set_})
    for (std::size_t i = 0; set && i < set->all().size(); ++i)
      require(set->all()[i].value.on_cpu(), ErrorKind::bad_argument, "optimizer", set->all()[i].name,
              " lies on ", set->all()[i].value.where(), " already; bring it home first");
  for (Param& p : params.all()) pieces_.push_back({&p, nullptr, p.value, {}, {}});
  for (std::size_t i = 0; image && i < pieces_.size(); ++i) pieces_[i].image = &image->all()[i];
  try {
    lay_params(device);
    lay_moments(state);
    make_table(state);
  } catch (...) {
    point_home();
    throw;
  }
}

void DeviceSteps::lay_params(Device device) {
  Index bytes = 0;
  const std::vector<Index> places = gradient_places(image_set_ ? *image_set_ : *params_, &bytes);
  for (ParamSet* set : {params_, image_set_})
    for (std::size_t i = 0; set && i < set->all().size(); ++i)
      set->all()[i].grad = {}, set->all()[i].grad_memory = {};
  moved_ = DeviceParams(*params_, kAll, device, ctx_);
  if (image_set_) image_ = DeviceParams(*image_set_, kAll, device, ctx_);
  grads_ = DeviceBuffer(static_cast<std::size_t>(bytes), device);
  clear_bytes(bytes_of(grads_.data(), grads_.size(), device), ctx_);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    Param& p = *pieces_[i].param;
    p.grad = p.value, p.grad.data = grads_.data() + places[i];
    if (pieces_[i].image) pieces_[i].image->grad = p.grad;
  }
}

void DeviceSteps::lay_moments(const State& state) {
  Index all = 0;
  for (const Buffer& b : state.moments) all += aligned(static_cast<Index>(b.size()));
  moments_ = DeviceBuffer(static_cast<std::size_t>(all), device());
  std::byte* at = moments_.data();
  for (std::size_t i = 0; i < state.moments.size(); ++i) {
    const Buffer& b = state.moments[i];
    const Index count = static_cast<Index>(b.size()) / size_of(DType::f32);
    Piece& piece = pieces_[i / state.words];
    piece.home.push_back(numbers(b.data(), count, Device::cpu()));
    piece.there.push_back(numbers(at, count, device()));
    to(piece.home.back(), piece.there.back(), ctx_);
    at += aligned(static_cast<Index>(b.size()));
  }
}

void DeviceSteps::make_table(const State& state) {
  std::vector<cuda::AdamWParameter> rows;
  const auto floats = [](const AnyView& v) { return static_cast<float*>(v.data); };
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const Param& p = *piece.param;
    if (!p.grad.given()) continue;
    rows.push_back({.master = floats(p.value),
                    .gradient = floats(p.grad),
                    .m = floats(piece.there[0]),
                    .v = floats(piece.there[1]),
                    .average = state.words > 2 ? floats(piece.there[2]) : nullptr,
                    .rate = static_cast<float>(p.rate),
                    .weight = piece.image ? piece.image->value.data : nullptr,
                    .weight_dtype = piece.image ? piece.image->value.dtype : DType::f32,
                    .decays = state.decays[i],
                    .count = p.value.count(),
                    .first_block = blocks_});
    blocks_ += ceil_div(p.value.count(), cuda::kAdamWBlock);
  }
  rows_ = static_cast<int>(rows.size());
  const std::size_t bytes = rows.size() * sizeof rows[0];
  table_ = DeviceBuffer(bytes, device());
  to(bytes_at_home(rows.data(), bytes), bytes_of(table_.data(), bytes, device()), ctx_);
  squares_ = DeviceBuffer(static_cast<std::size_t>(blocks_) * sizeof(double), device());
  words_ = DeviceBuffer(sizeof(cuda::AdamWWords), device());
  clear_bytes(bytes_of(words_.data(), words_.size(), device()), ctx_);
}

void DeviceSteps::begin(Index micro_batches) {
  const std::size_t bytes = static_cast<std::size_t>(1 + micro_batches) * sizeof(double);
  if (figures_.size() < bytes * 2) {
    for (Flight& f : flights_) f = {LateBytes(bytes, device()), 0};
    figures_ = DeviceBuffer(bytes * 2, device());  // last: its size says that all is there
  }
  micro_batches_ = micro_batches;
  clear_bytes(bytes_of(reinterpret_cast<std::byte*>(figures()), bytes, device()), ctx_);
}

void DeviceSteps::clear() {
  clear_bytes(bytes_of(grads_.data(), grads_.size(), device()), ctx_);
  clear_bytes(bytes_of(words_.data(), words_.size(), device()), ctx_);
}

AnyView DeviceSteps::home_value(const Param& p) const {
  for (const Piece& piece : pieces_)
    if (piece.param == &p) return piece.value;
  return p.value;
}

double* DeviceSteps::figures() const {
  return reinterpret_cast<double*>(figures_.data()) +
         static_cast<std::size_t>(sent_ % 2) * (figures_.size() / sizeof(double) / 2);
}

AnyView DeviceSteps::losses(Index number) const {
  return AnyView::packed(figures() + 1 + number, DType::f64, {1}).on(device());
}

void DeviceSteps::step(const DeviceStep& s, double most) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const cuda::AdamWWords words{.rate = f(s.rate),
                               .beta1 = f(s.beta1),
                               .beta2 = f(s.beta2),
                               .eps = f(s.eps),
                               .decay = f(s.decay),
                               .size = f(s.size),
                               .root = f(s.root),
                               .gain = f(s.gain),
                               .factor = 1,
                               .skip = 0};
  constexpr std::size_t kSent = offsetof(cuda::AdamWWords, factor);
  to(bytes_at_home(&words, kSent), bytes_of(words_.data(), kSent, device()), ctx_);
  auto* there = reinterpret_cast<cuda::AdamWWords*>(words_.data());
  cuda::AdamWTask task{.parameters = reinterpret_cast<const cuda::AdamWParameter*>(table_.data()),
                       .words = there,
                       .count = rows_,
                       .blocks = blocks_,
                       .clear_gradients = true,
                       .squares = reinterpret_cast<double*>(squares_.data())};
  start(task, device(), ctx_.stream());
  start(
      cuda::NormOfTask{
          .squares = task.squares, .blocks = blocks_, .limit = f(most), .norm = figures(), .words = there},
      device(), ctx_.stream());
  task.squares = nullptr;
  start(task, device(), ctx_.stream());
}

Index DeviceSteps::send() {
  Flight& flight = flights_[static_cast<std::size_t>(sent_ % 2)];
  flight.bytes.start(figures(), ctx_);
  flight.count = static_cast<std::size_t>(micro_batches_);
  return sent_++;
}

DeviceSteps::Figures DeviceSteps::read(Index ticket) const {
  const Flight& flight = flights_[static_cast<std::size_t>(ticket % 2)];
  const auto* at = reinterpret_cast<const double*>(flight.bytes.wait());
  return {at[0], {at + 1, flight.count}};
}

void DeviceSteps::fetch() {
  moved_.fetch(ctx_);
  for (const Piece& piece : pieces_)
    for (std::size_t word = 0; word < piece.home.size(); ++word)
      to(piece.there[word], piece.home[word], ctx_);
}

void DeviceSteps::leave() {
  moved_.fetch(ctx_);
  image_.fetch(ctx_);
  point_home();
}

void DeviceSteps::point_home() {
  for (const Piece& piece : pieces_)
    for (Param* p : {piece.param, piece.image})
      if (p) p->grad = {};
  moved_.point_home();
  image_.point_home();
  params_->make_grads();
  if (image_set_) image_set_->make_grads();
}

void DeviceSteps::put() {
  for (const Piece& piece : pieces_) {
    to(piece.value, piece.param->value, ctx_);
    for (std::size_t word = 0; word < piece.home.size(); ++word)
      to(piece.home[word], piece.there[word], ctx_);
  }
  round_image();
  clear();
  wait(device(), ctx_);
}

/// The 16-bit weights from the f32 ones.
void DeviceSteps::round_image() {
  for (const Piece& piece : pieces_) {
    if (!piece.image || piece.image->value.count() == 0) continue;
    const Index count = piece.param->value.count();
    start(cuda::ActivationTask{.x = {piece.param->value.data, DType::f32, count},
                               .out = {piece.image->value.data, piece.image->value.dtype, count},
                               .rows = 1,
                               .columns = count},
          device(), ctx_.stream());
  }
}

void DeviceSteps::swap_averages() {
  for (const Piece& piece : pieces_) {
    if (piece.there.size() < 3 || piece.there[2].count() == 0) continue;
    const Index count = piece.there[2].count();
    const std::size_t bytes = piece.param->bytes();
    if (spare_.size() < bytes) wait(device(), ctx_), spare_ = DeviceBuffer(bytes, device());
    const AnyView value = numbers(static_cast<std::byte*>(piece.param->value.data), count, device()),
                  between = numbers(spare_.data(), count, device());
    to(value, between, ctx_), to(piece.there[2], value, ctx_), to(between, piece.there[2], ctx_);
  }
  round_image();
}

}  // namespace headwise
