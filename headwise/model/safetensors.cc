#include "headwise/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"
#include "headwise/model/mapping.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "safetensors";

/// Row by row where the last axis is dense, element by element where it is not.
void copy_out(const std::byte* from, const AnyView& out) {
  const auto width = static_cast<std::size_t>(size_of(out.dtype));
  const int last = out.rank - 1;
  const Index columns = out.size[last], rows = columns ? out.count() / columns : 0;
  for (Index row = 0; row < rows; ++row) {
    Index rest = row, offset = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      offset += rest % out.size[axis] * out.step[axis];
      rest /= out.size[axis];
    }
    std::byte* to = static_cast<std::byte*>(out.data) + static_cast<std::size_t>(offset) * width;
    if (out.step[last] == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(columns) * width);
    } else {
      for (Index i = 0; i < columns; ++i)
        std::memcpy(to + static_cast<std::size_t>(i * out.step[last]) * width,
                    from + static_cast<std::size_t>(i) * width, width);
    }
    from += static_cast<std::size_t>(columns) * width;
  }
}

std::string shape_of(const SafetensorsEntry& e) {
  std::string out = text(e.dtype, " [");
  for (int axis = 0; axis < e.rank; ++axis) out += text(axis ? " " : "", e.size[axis]);
  return out + "]";
}

}  // namespace

struct Safetensors::State {
  std::string path;
  SafetensorsHeader header;
  std::unique_ptr<Mapping> map;
  Buffer copy;
  std::optional<File> file;                         // Reading::later
  std::span<const std::byte> data;                  // behind the header
  std::map<std::string, Buffer, std::less<>> kept;  // tensors that lie aligned here alone, or were read later

  std::span<const std::byte> bytes(const SafetensorsEntry& e) {
    const auto size = static_cast<std::size_t>(e.end - e.begin);
    if (!file) return data.subspan(static_cast<std::size_t>(e.begin), size);
    auto at = kept.find(e.name);
    if (at == kept.end()) {
      Buffer read(size);
      file->read_at(header.data_begin + e.begin, read.span());
      at = kept.emplace(e.name, std::move(read)).first;
    }
    return at->second.span();
  }
};

Safetensors::Safetensors(const std::string& path, const SafetensorsOptions& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  File file = File::open_to_read(path, kOp);
  const Index size = file.bytes();
  std::byte first[8] = {};
  if (size >= 8) file.read_at(0, first);
  const Index header_bytes =
      safetensors_header_bytes({first, size >= 8 ? 8u : 0u}, size, path, options.limits);
  // The header is read, not mapped: what was checked cannot change afterwards.
  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  file.read_at(8, std::as_writable_bytes(std::span(text)));
  s.header = parse_safetensors_header(text, size - 8 - header_bytes, path, options.limits);
  if (options.reading == Reading::mapped) {
    s.map = std::make_unique<Mapping>(file, size, kOp, path);
    s.data = s.map->bytes().subspan(static_cast<std::size_t>(s.header.data_begin));
  } else if (options.reading == Reading::copied) {
    s.copy = Buffer(static_cast<std::size_t>(size - s.header.data_begin));
    file.read_at(s.header.data_begin, s.copy.span());
    s.data = s.copy.span();
  }
  require(file.bytes() == size, ErrorKind::bad_argument, kOp, path, ": had ", size, " bytes and has ",
          file.bytes(), " now; it is being written: wait for its writer");
  if (options.reading == Reading::later) s.file.emplace(std::move(file));
}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

const std::string& Safetensors::path() const noexcept { return state_->path; }
const std::vector<SafetensorsEntry>& Safetensors::entries() const noexcept { return state_->header.entries; }
const Metadata& Safetensors::metadata() const noexcept { return state_->header.metadata; }
const std::string* Safetensors::metadata(std::string_view key) const {
  for (const auto& [k, value] : state_->header.metadata)
    if (k == key) return &value;
  return nullptr;
}
bool Safetensors::has(std::string_view name) const { return state_->header.find(name) != nullptr; }

const SafetensorsEntry& Safetensors::entry(std::string_view name) const {
  if (const SafetensorsEntry* e = state_->header.find(name)) return *e;
  const auto& all = state_->header.entries;
  auto near = std::lower_bound(all.begin(), all.end(), name,
                               [](const SafetensorsEntry& e, std::string_view n) { return e.name < n; });
  if (near == all.end() && !all.empty()) --near;
  throw Error(ErrorKind::bad_argument,
              text(kOp, ": ", state_->path, ": has no ", quoted(name), " among its ", all.size(), " tensors",
                   all.empty() ? "" : "; the nearest name is " + quoted(near->name)));
}

std::span<const std::byte> Safetensors::bytes(std::string_view name) const {
  return state_->bytes(entry(name));
}

ConstView Safetensors::view(std::string_view name) {
  const SafetensorsEntry& e = entry(name);
  const auto dtype = e.as_dtype();
  require(dtype.has_value(), ErrorKind::bad_dtype, kOp, state_->path, ": ", quoted(name), " is ", e.dtype,
          ", which headwise does not compute with; take its bytes()");
  require(e.rank <= kMaxRank, ErrorKind::bad_shape, kOp, state_->path, ": ", quoted(name), " has ", e.rank,
          " sizes; views have at most ", kMaxRank, ": take its bytes()");
  std::span<const std::byte> raw = state_->bytes(e);
  const auto width = static_cast<std::uintptr_t>(size_of(*dtype));
  if (reinterpret_cast<std::uintptr_t>(raw.data()) % width != 0) {
    auto& kept = state_->kept;
    auto at = kept.find(name);
    if (at == kept.end()) {
      at = kept.emplace(e.name, Buffer(raw.size())).first;
      if (!raw.empty()) std::memcpy(at->second.data(), raw.data(), raw.size());
    }
    raw = at->second.span();
  }
  ConstView v;
  v.data = raw.data();
  v.dtype = *dtype;
  v.rank = e.rank ? e.rank : 1;
  v.size[0] = 1;
  for (int axis = 0; axis < e.rank; ++axis) v.size[axis] = e.size[axis];
  // Sizes beside a 0 may be anything; no element of theirs asks for a step.
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    v.step[axis] = step;
    if (__builtin_mul_overflow(step, v.size[axis], &step)) step = 0;
  }
  return v;
}

void Safetensors::check(std::string_view name, const AnyView& out) const {
  const SafetensorsEntry& e = entry(name);
  bool same = e.as_dtype() == out.dtype && (e.rank == out.rank || (e.rank == 0 && out.rank == 1));
  for (int axis = 0; same && axis < out.rank; ++axis) same = out.size[axis] == (e.rank ? e.size[axis] : 1);
  if (!same)
    throw Error(ErrorKind::bad_shape, text(kOp, ": ", state_->path, ": ", quoted(name), " is ", shape_of(e),
                                           " but ", out, " was asked; it belongs to another configuration"));
}

void Safetensors::read(std::string_view name, const AnyView& out) const {
  check(name, out);
  if (out.count() == 0) return;
  const SafetensorsEntry& e = entry(name);
  if (state_->file && state_->kept.count(e.name) == 0) {
    Buffer raw(static_cast<std::size_t>(e.end - e.begin));  // given back at once
    state_->file->read_at(state_->header.data_begin + e.begin, raw.span());
    return copy_out(raw.data(), out);
  }
  copy_out(state_->bytes(e).data(), out);
  require(intact(), ErrorKind::bad_argument, kOp, state_->path, ": was cut short while ", quoted(name),
          " was read; read it again when its writer is done");
}

bool Safetensors::intact() const noexcept { return !state_->map || state_->map->intact(); }

}  // namespace headwise
