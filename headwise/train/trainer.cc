#include "headwise/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "headwise/base/random.h"
#include "headwise/train/data.h"
#include "headwise/train/grad_tree.h"
#include "headwise/train/interrupt.h"
#include "headwise/train/shards.h"
#include "headwise/train/train_log.h"

namespace headwise {
namespace {

std::uint64_t seed_of(std::uint64_t run, Index step, Index number) {
  const auto t = static_cast<std::uint64_t>(step);
  const Philox::Block b =
      Philox::block(run, {static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(t >> 32),
                          static_cast<std::uint32_t>(number), 0x7a41u});
  return std::uint64_t{b[1]} << 32 | b[0];
}

void check(const TrainerOptions& o) {
  constexpr const char* kOp = "trainer";
  require(o.steps >= 0, ErrorKind::bad_argument, kOp, "steps is ", o.steps, "; give 0 or more");
  require(o.micro_rows >= 1 && o.micro_batches >= 1, ErrorKind::bad_argument, kOp, "got ", o.micro_batches,
          " micro-batches of ", o.micro_rows, " examples; give 1 or more of each");
  require(o.clip >= 0 && std::isfinite(o.clip), ErrorKind::bad_argument, kOp, "clip is ", o.clip,
          "; give a norm above 0, or 0 for none");
  require(o.save_every >= 0 && o.judge_every >= 0 && o.patience >= 0, ErrorKind::bad_argument, kOp,
          "save_every, judge_every and patience are ", o.save_every, ", ", o.judge_every, " and ", o.patience,
          "; give 0 or more");
  require(o.seconds >= 0, ErrorKind::bad_argument, kOp, "seconds is ", o.seconds, "; give 0 or more");
  require(o.save_every == 0 || !o.folder.empty(), ErrorKind::bad_argument, kOp,
          "save_every is set but there is no folder; name one");
  const int ranks = o.data ? o.data->ranks() : 1;
  require(o.tree || ranks == 1, ErrorKind::bad_argument, kOp, "there are ", ranks,
          " ranks, whose gradients are added as a tree alone; set tree");
  require(!o.tree || (leaves_of(o.micro_batches, kMostDataLeaves) == o.micro_batches &&
                      o.micro_batches % ranks == 0),
          ErrorKind::bad_argument, kOp, "a tree of ", o.micro_batches, " micro-batches over ", ranks,
          " ranks was asked; give a power of two up to ", kMostDataLeaves, " that the ranks divide");
  require(o.patience == 0 || o.judge_every > 0, ErrorKind::bad_argument, kOp,
          "patience is set but nothing is judged; set judge_every");
}

}  // namespace

Trainer::Trainer(Optimizer& optimizer, Index examples, TrainerOptions options, Context& ctx,
                 MasterWeights* masters)
    : optimizer_(optimizer), examples_(examples), options_(std::move(options)), ctx_(ctx), masters_(masters) {
  check(options_);
  require(examples >= 1, ErrorKind::bad_argument, "trainer",
          "the data set is empty; give it one example or more");
  require(!masters || !options_.cut, ErrorKind::unsupported, "trainer",
          "parameters that are cut over ranks have no masters yet; learn in f32");
  require(!masters || &masters->params() == &optimizer.params(), ErrorKind::bad_argument, "trainer",
          "the optimizer does not hold the masters' parameters; make it of masters.params()");
  require(!optimizer.shards() || (!options_.cut && options_.data == &optimizer.shards()->team()),
          ErrorKind::bad_argument, "trainer",
          "the optimizer's state is spread over the ranks of another training; make a new optimizer");
  if (options_.data && !options_.cut && !optimizer.shards()) optimizer.share(*options_.data);
}

TrainingIdentity Trainer::identity() const {
  return {text(options_.config, " | examples=", examples_, " micro_rows=", options_.micro_rows,
               " micro_batches=", options_.micro_batches, options_.tree ? " order=tree" : "",
               options_.cut ? " cut=tree" : "", " clip=", options_.clip, " rate=", options_.rate.describe()),
          numerics_id(ctx_)};
}

/// Ranks start the same training at the same step.
void Trainer::agree_on(Index first) const {
  const Communicator* const tensor = options_.cut ? &options_.cut->team() : nullptr;
  for (const Communicator* team : {options_.data, tensor})
    if (team)
      team->agree("trainer", {{"config", identity().config},
                              {"numerics", identity().numerics},
                              {"seed", text(options_.seed)},
                              {"step", text(first)},
                              {"steps", text(options_.steps)}});
}

Trainer::Wish Trainer::interruption() { return Interrupt::wished() ? Wish::interrupted : Wish::none; }

/// What the ranks wish, the strongest of them: all stop together, and for one reason.
Trainer::Wish Trainer::wish_of_all(Wish own) const {
  const Communicator* const tensor = options_.cut ? &options_.cut->team() : nullptr;
  for (const Communicator* team : {options_.data, tensor}) {
    if (!team) continue;
    std::vector<Wish> all(static_cast<std::size_t>(team->ranks()));
    team->gather_bytes(&own, all.data(), sizeof own, "wishes to stop");
    own = *std::max_element(all.begin(), all.end());
  }
  return own;
}

std::optional<Checkpoints::Restored> Trainer::restore(const Checkpoints& kept) {
  if (optimizer_.shards()) {
    Optimizer whole = optimizer_.like(optimizer_.params());
    auto restored = kept.restore(whole, identity());
    if (restored) optimizer_.take(whole);
    return restored;
  }
  if (!options_.cut) return kept.restore(optimizer_, identity());
  Optimizer whole = options_.cut->blank(optimizer_);
  auto restored = kept.restore(whole, identity());
  if (restored) options_.cut->take(whole, optimizer_);
  return restored;
}

/// Every rank joins what is cut or spread, one writes.
std::string Trainer::save(Checkpoints& kept, const TrainState& state) {
  if (optimizer_.shards()) {
    const Optimizer whole = optimizer_.whole();
    return writes() ? kept.save(whole, state, identity()) : "";
  }
  if (!options_.cut) return writes() ? kept.save(optimizer_, state, identity()) : "";
  if (options_.checkpoints.slices) {
    const bool first = !options_.data || options_.data->rank() == 0;
    return first ? kept.save_slices(optimizer_, *options_.cut, state, identity()) : "";
  }
  const Optimizer whole = options_.cut->joined(optimizer_);
  return writes() ? kept.save(whole, state, identity()) : "";
}

double Trainer::norm() const {
  if (optimizer_.shards()) return optimizer_.shards()->grad_norm(optimizer_.params(), ctx_);
  return options_.cut ? options_.cut->grad_norm(ctx_) : grad_norm(optimizer_.params(), ctx_);
}

/// Forward and backward of this rank's micro-batches; the gradients are those of the whole step afterwards.
/// Returns its mean loss.
double Trainer::learn_step(const Learn& learn, ExampleOrder& order, TrainState& state, GradTree* tree) {
  const int ranks = options_.data ? options_.data->ranks() : 1,
            rank = options_.data ? options_.data->rank() : 0;
  const Index own = options_.micro_batches / ranks, from = rank * own;
  const double weight = 1.0 / static_cast<double>(options_.micro_batches);
  std::vector<Index> chosen(static_cast<std::size_t>(options_.micro_rows));
  std::vector<double> losses;
  optimizer_.params().zero_grads();
  for (Index number = from; number < from + own; ++number) {
    for (Index i = 0; i < options_.micro_rows; ++i)
      chosen[static_cast<std::size_t>(i)] = order.at(state.examples + number * options_.micro_rows + i);
    losses.push_back(learn({state.step, number, chosen, seed_of(options_.seed, state.step, number), weight}));
    if (masters_) masters_->take_grads(ctx_);
    if (tree) tree->add_leaf(number + 1 == from + own, ctx_);
  }
  state.examples += options_.micro_rows * options_.micro_batches;
  if (tree) tree->finish(ctx_, optimizer_.shards());
  std::vector<double> all = losses;
  if (options_.data) {
    all.resize(losses.size() * static_cast<std::size_t>(ranks));
    options_.data->gather_bytes(losses.data(), all.data(), static_cast<Index>(losses.size() * sizeof(double)),
                                "losses");
  }
  double loss = 0;
  for (const double one : all) loss += weight * one;
  return loss;
}

TrainResult Trainer::run(const Learn& learn, const Judge& judge) {
  require(options_.judge_every == 0 || judge != nullptr, ErrorKind::bad_argument, "trainer",
          "judge_every is ", options_.judge_every, " but no judge was given; give one or set it to 0");
  TrainResult result;
  TrainState state{.seed = options_.seed};
  std::optional<Checkpoints> kept;
  Index saved = -1;  // the step of the last checkpoint
  std::vector<std::string> damaged;
  if (!options_.folder.empty()) {
    kept.emplace(options_.folder, options_.checkpoints);
    if (auto restored = restore(*kept)) {
      require(restored->state.seed == options_.seed, ErrorKind::bad_argument, "trainer", restored->path,
              " was trained with seed ", restored->state.seed, ", not ", options_.seed,
              "; give the same seed or another folder");
      state = restored->state;
      saved = state.step;
      result.checkpoint = restored->path;
      damaged = std::move(restored->damaged);
      if (masters_) masters_->publish(ctx_);
    }
  }
  const Index first = state.step;
  agree_on(first);
  std::optional<GradTree> tree;
  if (options_.tree) tree.emplace(optimizer_.params(), options_.data);
  Progress progress(options_.out, first, options_.steps, options_.screen);
  for (const std::string& sentence : damaged) progress.say("passed over: " + sentence);
  if (saved >= 0) progress.say(text("resumed from ", result.checkpoint));
  TrainLog log(options_.log, first);
  const Interrupt interrupt;
  const auto start = std::chrono::steady_clock::now();
  ExampleOrder order(examples_, options_.seed);
  const auto save = [&] {
    if (!kept || saved == state.step) return;
    if (std::string path = this->save(*kept, state); writes()) result.checkpoint = path;
    saved = state.step;
  };
  const auto refuse = [&](std::string_view what, double value) {
    std::string bad = first_not_finite(optimizer_.params());
    bad = bad.empty() ? "every parameter and gradient is finite: look at the data of this step"
                      : "the first bad tensor is " + bad;
    progress.finish();
    throw Error(ErrorKind::bad_argument, text("trainer: the ", what, " of step ", state.step, " is ", value,
                                              "; ", bad, "; the last good checkpoint is ",
                                              result.checkpoint.empty() ? "none" : result.checkpoint));
  };

  const auto tired = [&] { return options_.patience > 0 && state.since_best >= options_.patience; };
  const auto since_start = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto late = [&] { return options_.seconds > 0 && since_start() >= options_.seconds; };
  // Ranks stop together: what one wishes is heard by all after the step.
  const auto wishes = [&] { return late() ? Wish::late : interruption(); };
  Wish wish = alone() ? wishes() : Wish::none;
  while (state.step < options_.steps && !tired() && wish == Wish::none) {
    const double rate = options_.rate.at(state.step);
    const double loss = learn_step(learn, order, state, tree ? &*tree : nullptr);
    wish = alone() ? Wish::none : wish_of_all(wishes());
    if (!std::isfinite(loss)) refuse("loss", loss);
    const double norm = this->norm();
    if (!std::isfinite(norm)) refuse("gradient's norm", norm);
    if (options_.clip > 0 && norm + 1e-6 > options_.clip)
      scale_grads(optimizer_.params(), options_.clip / (norm + 1e-6), ctx_);
    optimizer_.step(rate, ctx_);
    if (masters_) masters_->publish(ctx_);
    ++state.step;
    result.loss = loss;

    LogRow row{.step = state.step, .examples = state.examples, .loss = loss, .rate = rate, .norm = norm};
    if (options_.judge_every > 0 && state.step % options_.judge_every == 0) {
      row.judged = judge();
      if (*row.judged < state.best)
        state.best = *row.judged, state.since_best = 0;
      else
        ++state.since_best;
    }
    row.seconds = since_start();
    log.write(row);
    progress.update(state.step, loss, (state.step - first) * options_.micro_rows * options_.micro_batches,
                    row.seconds);
    if (options_.save_every > 0 && state.step % options_.save_every == 0) save();
    if (alone()) wish = wishes();
  }
  if (state.step < options_.steps)
    result.ending = !tired() && wish == Wish::interrupted ? Ending::interrupted : Ending::early;
  save();
  result.step = state.step;
  result.best = state.best;
  progress.finish();
  if (result.ending == Ending::early)
    progress.say(tired() ? text("stopped early at step ", state.step, ": no better than ", state.best,
                                " for ", options_.patience, " judgements")
                         : text("stopped at step ", state.step, ": its time is up"));
  if (result.ending == Ending::interrupted)
    progress.say(text("interrupted at step ", state.step, "; ",
                      kept ? "saved " + result.checkpoint + ": run again to go on"
                           : "nothing is saved: give a folder to keep checkpoints"));
  return result;
}

}  // namespace headwise
