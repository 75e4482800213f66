#include "headwise/lab/cut/cut_curve.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "headwise/intent/training/evaluation.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "cut";

double seconds_of(HeadTrial& trial) {
  const auto begun = std::chrono::steady_clock::now();
  trial.answers();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

Index kv_bytes_of(const LabModel& model) {
  Index columns = 0;
  for (Index layer = 0; layer < model.layers(); ++layer) {
    const Widths w = model.attention(layer).head().widths();
    columns += w.k + w.v;
  }
  return columns * size_of(DType::f32);
}

/// A folder that goes with its scope.
struct FolderOnTheWay {
  explicit FolderOnTheWay(std::string folder) : name(std::move(folder)) {}
  FolderOnTheWay(const FolderOnTheWay&) = delete;
  FolderOnTheWay& operator=(const FolderOnTheWay&) = delete;
  ~FolderOnTheWay() {
    std::error_code left;  // a destructor has nobody to tell
    if (!name.empty()) std::filesystem::remove_all(name, left);
  }
  std::string name;
};

LabModel made_small(const LabModel& model, const HeadPlan& plan, const std::string& scratch) {
  const EditedModel edited = cut_heads(model, plan);
  if (model.labels()) return LabModel(model.edited(edited, kOp));
  model.save(edited, scratch, kOp);
  return LabModel(scratch);
}

}  // namespace

std::vector<CutState> cut_curve(const LabModel& model, HeadTrial& trial, const Corpus& corpus,
                                const std::vector<HeadName>& order, const CutCurveOptions& o,
                                Session& session) {
  require(o.states >= 2 && o.rounds >= 1, ErrorKind::bad_argument, kOp, "asked for a curve of ", o.states,
          " states and ", o.rounds, " rounds; give 2 states and 1 round or more");
  std::error_code none;
  require(model.labels() || !std::filesystem::exists(std::filesystem::symlink_status(o.scratch, none)),
          ErrorKind::bad_argument, kOp, o.scratch,
          " is there, and the curve needs this name for models on the way; move it away");
  const FolderOnTheWay scratch(model.labels() ? std::string() : o.scratch);
  const auto gone = static_cast<Index>(order.size()), states = min_of(o.states, gone + 1);
  std::vector<CutState> all;
  HeadPlan plan(trial.heads());
  for (Index i = 0, next = 0; i < states; ++i) {
    for (const Index end = states > 1 ? i * gone / (states - 1) : 0; next < end; ++next)
      plan.take_out(order[static_cast<std::size_t>(next)]);
    const LabModel small = made_small(model, plan, scratch.name);
    HeadTrial own(small, corpus, o.texts, session);
    std::vector<double> whole_times, own_times;
    for (int round = 0; round < o.rounds; ++round)
      whole_times.push_back(seconds_of(trial)), own_times.push_back(seconds_of(own));
    CutState s{.heads = plan.left(), .parameters = small.params().count(), .kv_bytes = kv_bytes_of(small)};
    s.loss = trial.loss_without(plan);
    if (small.labels()) s.right = evaluate(small.recognizer(), corpus, session, {}).exact.value();
    s.seconds = median(own_times) / static_cast<double>(own.texts());
    s.time = median(own_times) / median(whole_times);
    all.push_back(s);
  }
  return all;
}

}  // namespace headwise
