#include "headwise/train/checkpoints/checkpoint.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/model/file.h"
#include "headwise/train/checkpoints/checkpoint_file.h"
#include "headwise/train/checkpoints/sliced_checkpoint.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "checkpoint", kFront = "step-", kBack = ".safetensors", kFormat = "1";
constexpr std::size_t kDigits = 12;

std::string file_name(Index step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return text(kFront, digits, kBack);
}

/// What a checkpoint keeps and writes back.
struct KeptTensor {
  std::string name;
  AnyView value;
};
/// Everything a checkpoint keeps, by name: parameters, then moments.
std::vector<KeptTensor> tensors_of(const Optimizer& optimizer, const ParamSet& params) {
  std::vector<KeptTensor> all;
  for (const Param& p : params.all()) all.push_back({text("param.", p.name), optimizer.home_value(p)});
  for (const Optimizer::Moment& m : optimizer.moments()) all.push_back({m.name, m.value});
  std::sort(all.begin(), all.end(), [](const KeptTensor& a, const KeptTensor& b) { return a.name < b.name; });
  return all;
}

/// Counters of a run; those near the end of Index could not be counted on.
Index count_of(const Safetensors& file, std::string_view key) {
  constexpr Index kMost = Index{1} << 60;
  const auto n = checkpoint_number<Index>(file, key);
  require(n >= 0 && n <= kMost, ErrorKind::bad_argument, kOp, file.path(), ": \"", key, "\" is ", n,
          "; counters go from 0 to ", kMost, ": no run of headwise wrote it");
  return n;
}

void check_same(const Safetensors& file, std::string_view key, std::string_view ours,
                std::string_view way_out) {
  const std::string& theirs = checkpoint_word(file, key);
  require(theirs == ours, ErrorKind::bad_argument, kOp, file.path(), ": was written with ", key, " \"",
          theirs, "\" but this run has \"", ours, "\"; ", way_out);
}

/// Throws unless it was written by this run, as its names and sizes say.
void check_ours(const Safetensors& f, const Optimizer& optimizer, const TrainingIdentity& identity,
                OtherNumerics other_numerics) {
  const std::string& version = checkpoint_word(f, "headwise.checkpoint");
  require(version == kFormat, ErrorKind::bad_argument, kOp, f.path(), ": has format ", version,
          " but this library reads ", kFormat, "; use the version that wrote it");
  check_same(f, "config", identity.config, "give the same config or another folder");
  check_same(f, "optimizer", optimizer.describe(), "give the same options or another folder");
  if (other_numerics == OtherNumerics::refuse)
    check_same(f, "numerics", identity.numerics,
               "run the same version at the same ISA level, or accept that the bits differ (other_numerics)");
  const std::vector<KeptTensor> tensors = tensors_of(optimizer, optimizer.params());
  require(f.entries().size() == tensors.size(), ErrorKind::bad_argument, kOp, f.path(), ": holds ",
          f.entries().size(), " tensors but this model has ", tensors.size(),
          "; it belongs to another model");
  for (const KeptTensor& t : tensors) {
    const SafetensorsEntry& e = f.entry(t.name);
    bool same = e.as_dtype() == t.value.dtype && e.rank == t.value.rank;
    for (int axis = 0; same && axis < e.rank; ++axis) same = e.size[axis] == t.value.size[axis];
    require(same, ErrorKind::bad_shape, kOp, f.path(), ": \"", t.name, "\" must be ", t.value,
            "; the file has another shape or dtype: it belongs to another model");
  }
}

TrainState state_of(const Safetensors& f) {
  const TrainState state{.step = count_of(f, "step"),
                         .seed = checkpoint_number<std::uint64_t>(f, "seed"),
                         .examples = count_of(f, "examples"),
                         .best = std::bit_cast<double>(checkpoint_number<std::uint64_t>(f, "best_bits")),
                         .since_best = count_of(f, "since_best")};
  require(!std::isnan(state.best), ErrorKind::bad_argument, kOp, f.path(),
          ": \"best_bits\" is no number; no run of headwise wrote it");
  return state;
}

}  // namespace

std::string numerics_id(const Context& ctx) {
  return text("headwise ", headwise::kVersion, " cpu/", cpu::chosen_isa().name,
              " kernels=", ctx.kernels().empty() ? "all" : ctx.kernels());
}

Checkpoints::Checkpoints(std::string folder, const CheckpointOptions& options)
    : folder_(std::move(folder)), options_(options) {
  require(options.keep >= 1, ErrorKind::bad_argument, kOp, "keep is ", options.keep,
          "; keep 1 checkpoint or more");
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) file_failed(kOp, folder_, "make this folder", failed.value());
}

std::vector<std::string> Checkpoints::files() const {
  std::vector<std::pair<Index, std::string>> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder_, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.size() < kFront.size() + kDigits + kBack.size() || !name.starts_with(kFront) ||
        !name.ends_with(kBack))
      continue;
    Index step = 0;
    const char* end_of = name.data() + name.size() - kBack.size();
    const auto [stop, error] = std::from_chars(name.data() + kFront.size(), end_of, step);
    if (error == std::errc() && stop == end_of) found.emplace_back(step, text(folder_, '/', name));
  }
  if (failed) file_failed(kOp, folder_, "list this folder", failed.value());
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

/// What a killed writer left: ".step-...PID.N.part" of a process that is no more.
void Checkpoints::remove_left_parts() const {
  std::error_code ignored;
  for (fs::directory_iterator at(folder_, ignored), end; !ignored && at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(text('.', kFront)) || !name.ends_with(".part")) continue;
    const std::size_t behind = name.find(kBack);
    if (behind == std::string::npos || behind + kBack.size() + 1 >= name.size()) continue;
    pid_t pid = 0;
    std::from_chars(name.data() + behind + kBack.size() + 1, name.data() + name.size(), pid);
    if (pid > 0 && pid != ::getpid() && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(at->path().c_str());
  }
}

namespace {

Metadata words_of(const Optimizer& optimizer, const TrainState& state, const TrainingIdentity& identity) {
  require(state.step >= 0 && state.examples >= 0, ErrorKind::bad_argument, kOp, "step ", state.step,
          " and examples ", state.examples, "; counters start at 0");
  return {{"headwise.checkpoint", std::string(kFormat)},
          {"step", std::to_string(state.step)},
          {"seed", std::to_string(state.seed)},
          {"examples", std::to_string(state.examples)},
          {"best_bits", std::to_string(std::bit_cast<std::uint64_t>(state.best))},
          {"since_best", std::to_string(state.since_best)},
          {"optimizer_steps", std::to_string(optimizer.steps())},
          {"optimizer", optimizer.describe()},
          {"config", identity.config},
          {"numerics", identity.numerics}};
}

}  // namespace

std::string Checkpoints::save(const Optimizer& optimizer, const TrainState& state,
                              const TrainingIdentity& identity) {
  Metadata words = words_of(optimizer, state, identity);
  remove_left_parts();
  std::vector<NamedTensor> tensors;
  for (const KeptTensor& t : tensors_of(optimizer, optimizer.params())) tensors.push_back({t.name, t.value});
  const std::string path = text(folder_, '/', file_name(state.step));
  write_checkpoint_file(path, tensors, std::move(words));
  remove_old(path);
  return path;
}

std::string Checkpoints::save_slices(const Optimizer& mine, const CutParams& cut, const TrainState& state,
                                     const TrainingIdentity& identity) {
  const Metadata words = words_of(mine, state, identity);
  remove_left_parts();
  const std::string json = headwise::save_slices(folder_, state.step, mine, cut, words);
  if (cut.team().rank() == 0) remove_old(json);
  return json;
}

void Checkpoints::remove_old(const std::string& newest) const {
  const auto keep = static_cast<std::size_t>(options_.keep);
  const std::vector<std::string> all = files(), slices = sliced_checkpoints(folder_);
  for (std::size_t i = keep; i < all.size(); ++i)
    if (all[i] != newest) ::unlink(all[i].c_str());
  for (std::size_t i = keep; i < slices.size(); ++i)
    if (slices[i] != newest) remove_slices(slices[i]);
}

void Checkpoints::join_newest(std::vector<std::string>& damaged) const {
  const std::vector<std::string> all = files();
  for (const std::string& json : sliced_checkpoints(folder_)) {
    const std::string out =
        json.substr(0, json.size() - std::string_view(".json").size()) + std::string(kBack);
    if (!all.empty() && all[0] >= out) return;
    try {
      return join_checkpoint(json, out);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::out_of_memory) throw;
      damaged.emplace_back(e.what());
    }
  }
}

std::optional<Checkpoints::Restored> Checkpoints::restore(Optimizer& optimizer,
                                                          const TrainingIdentity& identity) const {
  Restored restored;
  join_newest(restored.damaged);
  const std::vector<std::string> all = files();
  std::optional<Safetensors> file;
  for (const std::string& path : all) {
    bool whole_manifest = false;  // then what does not fit is a refusal, not damage
    try {
      // Later: a file of other sizes is refused before it takes memory, and what is read is kept, so that
      // what was checked is what is loaded.
      file.emplace(
          path, SafetensorsOptions{.reading = Reading::later,
                                   .limits = {.header_bytes = 100'000'000, .metadata_bytes = 100'000'000}});
      check_checkpoint_manifest(*file);
      whole_manifest = true;
      check_ours(*file, optimizer, identity, options_.other_numerics);
      whole_manifest = false;
      check_checkpoint_tensors(*file);
      break;
    } catch (const Error& e) {
      if (whole_manifest || e.kind() == ErrorKind::out_of_memory) throw;
      restored.damaged.emplace_back(e.what());
      file.reset();
    }
  }
  if (!file) {
    require(all.empty() && restored.damaged.empty(), ErrorKind::bad_argument, kOp, folder_, ": none of its ",
            max_of(static_cast<Index>(all.size()), 1),
            " checkpoints is whole; move them away to start afresh. The newest: ",
            restored.damaged.empty() ? "" : restored.damaged[0]);
    return std::nullopt;
  }
  restored.path = file->path();
  restored.state = state_of(*file);
  const Index steps = count_of(*file, "optimizer_steps");
  for (const KeptTensor& t : tensors_of(optimizer, optimizer.params())) file->read(t.name, t.value);
  optimizer.set_steps(steps);
  return restored;
}

}  // namespace headwise
