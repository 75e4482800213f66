#include "headwise/train/checkpoints/sliced_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>

#include "headwise/base/buffer.h"
#include "headwise/model/file.h"
#include "headwise/model/json_object.h"
#include "headwise/train/checkpoints/checkpoint_file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "checkpoint", kFront = "step-", kBack = ".json";
constexpr std::size_t kDigits = 12;

std::string digits_of(Index step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return digits;
}

/// A tensor as this rank holds it, and the whole one's sizes.
struct Held {
  std::string name;
  AnyView mine, whole;  // whole: sizes alone
};

std::vector<Held> held_by(const Optimizer& mine, const CutParams& cut) {
  std::map<std::string, AnyView> whole;
  for (const Param& p : cut.whole().all()) whole[p.name] = p.value;
  std::vector<Held> all;
  for (const Param& p : mine.params().all())
    all.push_back({text("param.", p.name), p.value, whole.at(p.name)});
  for (const Optimizer::Moment& m : mine.moments()) {  // "adamw.m.NAME": of the sizes of NAME
    AnyView sizes = whole.at(m.name.substr(m.name.find('.', m.name.find('.') + 1) + 1));
    sizes.dtype = m.value.dtype;
    all.push_back({m.name, m.value, sizes});
  }
  std::sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.name < b.name; });
  return all;
}

/// "axis begin size size ...": where a slice begins, and the sizes of the whole.
std::string line_of(const SlicePlace& at, const AnyView& whole) {
  std::string line = text(at.axis, ' ', at.begin);
  for (int axis = 0; axis < whole.rank; ++axis) line += text(' ', whole.size[axis]);
  return line;
}

struct SliceLine {
  SlicePlace at;
  AnyView whole;
};
SliceLine read_line(const Safetensors& file, const SafetensorsEntry& e) {
  const std::string& line = checkpoint_word(file, text("slice:", e.name));
  std::vector<Index> numbers;
  const char* from = line.data();
  const char* const end = from + line.size();
  while (from < end) {
    Index n = 0;
    const auto [stop, error] = std::from_chars(from, end, n);
    if (error != std::errc() || (stop < end && *stop != ' ')) break;
    numbers.push_back(n), from = stop + 1;
  }
  const auto dtype = e.as_dtype();
  bool right = from > end && dtype && static_cast<int>(numbers.size()) == e.rank + 2 && e.rank <= kMaxRank &&
               numbers[0] >= -1 && numbers[0] < e.rank;
  SliceLine l;
  for (int a = 0; right && a < e.rank; ++a) {
    const Index whole = numbers[static_cast<std::size_t>(a) + 2];
    const bool cut = a == numbers[0];
    right = whole >= 0 && (cut ? numbers[1] >= 0 && e.size[a] <= whole && numbers[1] <= whole - e.size[a]
                               : whole == e.size[a]);
  }
  require(right, ErrorKind::bad_argument, kOp, file.path(), ": \"", e.name, "\" does not lie at \"", line,
          "\" of a whole tensor; no run of headwise wrote it");
  l.at = {static_cast<int>(numbers[0]), numbers[0] < 0 ? 0 : numbers[1]};
  Index sizes[kMaxRank] = {};
  for (int a = 0; a < e.rank; ++a) sizes[a] = numbers[static_cast<std::size_t>(a) + 2];
  l.whole = AnyView::packed(nullptr, *dtype, {});
  l.whole.rank = e.rank;
  Index step = 1;
  for (int a = e.rank - 1; a >= 0; --a) l.whole.size[a] = sizes[a], l.whole.step[a] = step, step *= sizes[a];
  return l;
}

/// The tensors of all files, each whole once every part of it came.
class Joined {
 public:
  void add(Safetensors& file) {
    for (const SafetensorsEntry& e : file.entries()) {
      const SliceLine l = read_line(file, e);
      Piece& p = pieces_[e.name];
      if (!p.whole.given()) {
        p.memory = Buffer(static_cast<std::size_t>(max_of(1, l.whole.count() * size_of(l.whole.dtype))));
        p.whole = l.whole;
        p.whole.data = p.memory.data();
        p.axis = l.at.axis;
      }
      bool same = p.whole.dtype == l.whole.dtype && p.whole.rank == l.whole.rank && p.axis == l.at.axis;
      for (int a = 0; same && a < l.whole.rank; ++a) same = p.whole.size[a] == l.whole.size[a];
      require(same, ErrorKind::bad_argument, kOp, file.path(), ": \"", e.name,
              "\" has other whole sizes than in another file; they are of two checkpoints");
      put_slice(file.view(e.name), p.whole, l.at);
      p.parts.push_back({l.at.begin, l.at.axis < 0 ? 0 : e.size[l.at.axis]});
    }
  }

  /// Throws for rows that no file has, or two have.
  std::vector<NamedTensor> tensors(const std::string& json) {
    std::vector<NamedTensor> all;
    for (auto& [name, p] : pieces_) {
      std::sort(p.parts.begin(), p.parts.end(),
                [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
      Index end = 0;
      if (p.axis < 0) {
        require(p.parts.size() == 1, ErrorKind::bad_argument, kOp, json, ": \"", name, "\" is in ",
                p.parts.size(), " files; they are of two checkpoints");
      } else {
        for (const Slice& s : p.parts) {
          require(s.begin == end, ErrorKind::bad_argument, kOp, json, ": of \"", name, "\" what lies from ",
                  min_of(s.begin, end), " to ", max_of(s.begin, end), " along axis ", p.axis, " is in ",
                  s.begin > end ? "no file" : "two files", "; bring the files of all ranks");
          end = s.begin + s.size;
        }
        require(end == p.whole.size[p.axis], ErrorKind::bad_argument, kOp, json, ": of \"", name,
                "\" what lies from ", end, " to ", p.whole.size[p.axis], " along axis ", p.axis,
                " is in no file; bring the files of all ranks");
      }
      all.push_back({name, p.whole});
    }
    return all;
  }

 private:
  struct Piece {
    Buffer memory;
    AnyView whole;
    int axis = -1;
    std::vector<Slice> parts;
  };
  std::map<std::string, Piece> pieces_;
};

std::string rank_file(Index step, int rank) {
  return text(kFront, digits_of(step), ".rank-", rank, ".safetensors");
}

}  // namespace

std::string save_slices(const std::string& folder, Index step, const Optimizer& mine, const CutParams& cut,
                        const Metadata& words) {
  const Communicator& team = cut.team();
  const std::vector<Held> held = held_by(mine, cut);
  std::vector<SlicePlace> places;
  std::vector<Index> begins;
  for (const Held& h : held) {
    places.push_back(place_of_slice(h.name, h.whole, h.mine, team.rank(), team.ranks()));
    begins.push_back(places.back().begin);
  }
  std::vector<Index> all(begins.size() * static_cast<std::size_t>(team.ranks()));
  team.gather_bytes(begins.data(), all.data(), static_cast<Index>(begins.size() * sizeof(Index)), "slices");
  std::vector<NamedTensor> tensors;
  Metadata m = words;
  for (std::size_t i = 0; i < held.size(); ++i) {
    bool lower = false;
    for (int r = 0; r < team.rank(); ++r)
      lower |= all[static_cast<std::size_t>(r) * begins.size() + i] == begins[i];
    if (lower) continue;
    tensors.push_back({held[i].name, held[i].mine});
    m.emplace_back(text("slice:", held[i].name), line_of(places[i], held[i].whole));
  }
  const std::string path = text(folder, '/', rank_file(step, team.rank()));
  write_checkpoint_file(path, tensors, m);
  // The manifest's CRC holds those of all tensors.
  char crc[8] = {}, crcs[64 * 8] = {};
  const std::string written = checkpoint_word(Safetensors(path, {.reading = Reading::later}), kManifestCrc);
  std::memcpy(crc, written.data(), sizeof crc);
  require(team.ranks() <= 64, ErrorKind::unsupported, kOp, team.ranks(), " ranks; 64 write a checkpoint");
  team.gather_bytes(crc, crcs, sizeof crc, "CRCs of slices");
  const std::string json = text(folder, '/', kFront, digits_of(step), kBack);
  if (team.rank() == 0) {
    std::string said = text("{\n  \"headwise.slices\": \"1\",\n  \"step\": ", step, ",\n  \"files\": [");
    for (int r = 0; r < team.ranks(); ++r)
      said += text(r ? "," : "", "\n    {\"name\": \"", rank_file(step, r), "\", \"manifest_crc32c\": \"",
                   std::string_view(crcs + 8 * r, 8), "\"}");
    Replacement to(json, kOp);
    to.file().write(said + "\n  ]\n}\n");
    to.commit();
  }
  std::byte done{};
  team.share(&done, 1, "a checkpoint");  // no rank goes on before it is one
  return json;
}

void join_checkpoint(const std::string& json, const std::string& out) {
  const JsonObject list = JsonObject::read(json, kOp);
  require(list.word("headwise.slices", "") == "1", ErrorKind::bad_argument, kOp, json,
          ": is no list of slices of format 1; give the step-N.json of a folder of checkpoints");
  const std::vector<JsonObject> files = list.objects("files");
  require(!files.empty(), ErrorKind::bad_argument, kOp, json, ": names no file; it is no checkpoint");
  Joined joined;
  Metadata words;
  for (const JsonObject& f : files) {
    const std::string name = f.word("name");
    require(name.find('/') == std::string::npos && name.ends_with(".safetensors"), ErrorKind::bad_argument,
            kOp, json, ": names ", quoted(name),
            "; files of a checkpoint lie beside it and end in .safetensors");
    Safetensors file(
        text(folder_of(json), '/', name),
        {.reading = Reading::later, .limits = {.header_bytes = 100'000'000, .metadata_bytes = 100'000'000}});
    check_checkpoint_manifest(file);
    require(checkpoint_word(file, kManifestCrc) == f.word("manifest_crc32c"), ErrorKind::bad_argument, kOp,
            file.path(), ": is of another checkpoint than ", json, "; bring the files of one");
    check_checkpoint_tensors(file);
    joined.add(file);
    if (!words.empty()) continue;
    for (const auto& [key, value] : file.metadata())
      if (!key.starts_with("slice:") && !key.starts_with("crc32c:") && key != kManifestCrc)
        words.emplace_back(key, value);
  }
  write_checkpoint_file(out, joined.tensors(json), words);
}

std::vector<std::string> sliced_checkpoints(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.size() == kFront.size() + kDigits + kBack.size() && name.starts_with(kFront) &&
        name.ends_with(kBack))
      found.push_back(text(folder, '/', name));
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void remove_slices(const std::string& json) {
  ::unlink(json.c_str());
  const std::string front = json.substr(0, json.size() - kBack.size()) + ".rank-";
  std::error_code failed;
  for (fs::directory_iterator at(folder_of(json), failed), end; !failed && at != end; at.increment(failed))
    if (const std::string path = text(folder_of(json), '/', at->path().filename().string());
        path.starts_with(front))
      ::unlink(path.c_str());
}

}  // namespace headwise
