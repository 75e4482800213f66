#include "headwise/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "headwise/base/random.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/train/data.h"
#include "headwise/train/interrupt.h"
#include "headwise/train/steps/device_steps.h"
#include "headwise/train/steps/grad_tree.h"
#include "headwise/train/steps/late_loss.h"
#include "headwise/train/steps/shards.h"
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
  const DeviceSteps* const there = optimizer.there();
  require(!masters || !there || there->image() == &masters->image(), ErrorKind::bad_argument, "trainer",
          "the masters lie on a device without the set that they learn for; give Optimizer::to that set as "
          "image");
  require(!optimizer.shards() || (!options_.cut && options_.data == &optimizer.shards()->team()),
          ErrorKind::bad_argument, "trainer",
          "the optimizer's state is spread over the ranks of another training; make a new optimizer");
  require(
      !there || (alone() && !options_.tree), ErrorKind::unsupported, "trainer",
      "the parameters lie on a device, where one rank adds micro-batches one after the other; set neither "
      "ranks nor tree");
  if (options_.data && !options_.cut && !optimizer.shards()) optimizer.share(*options_.data);
}

TrainingIdentity Trainer::identity() const {
  return {text(options_.config, " | examples=", examples_, " micro_rows=", options_.micro_rows,
               " micro_batches=", options_.micro_batches, options_.tree ? " order=tree" : "",
               options_.cut ? " cut=tree" : "", " clip=", options_.clip, " rate=", options_.rate.describe()),
          numerics_id(ctx_) + (optimizer_.there() ? text(" on ", cuda_words()) : "")};
}

std::vector<const Communicator*> Trainer::teams() const {
  std::vector<const Communicator*> all;
  for (const Communicator* team :
       {options_.data, options_.cut ? &options_.cut->team() : nullptr, options_.context})
    if (team) all.push_back(team);
  return all;
}

/// Ranks start the same training at the same step.
void Trainer::agree_on(Index first) const {
  for (const Communicator* team : teams())
    team->agree("trainer", {{"config", identity().config},
                            {"numerics", identity().numerics},
                            {"seed", text(options_.seed)},
                            {"step", text(first)},
                            {"steps", text(options_.steps)}});
}

Trainer::Wish Trainer::interruption() { return Interrupt::wished() ? Wish::interrupted : Wish::none; }

/// The strongest wish, and figures that are not finite, wherever they are: all stop together, and for one
/// reason.
Trainer::Wish Trainer::hear_all(Wish wish, Done& done) const {
  struct Word {
    Wish wish = Wish::none;
    double loss = 0, norm = 0;
  } own{wish, done.loss, done.norm};
  for (const Communicator* team : teams()) {
    std::vector<Word> all(static_cast<std::size_t>(team->ranks()));
    team->gather_bytes(&own, all.data(), sizeof own, "the word of a step");
    for (const Word& other : all) {
      own.wish = std::max(own.wish, other.wish);
      if (std::isfinite(own.loss)) own.loss = std::isfinite(other.loss) ? own.loss : other.loss;
      if (std::isfinite(own.norm)) own.norm = std::isfinite(other.norm) ? own.norm : other.norm;
    }
  }
  done.loss = own.loss, done.norm = own.norm;
  return own.wish;
}

std::optional<Checkpoints::Restored> Trainer::restore(const Checkpoints& kept) {
  if (optimizer_.shards()) {
    Optimizer whole = optimizer_.like(optimizer_.params());
    auto restored = kept.restore(whole, identity());
    if (restored) optimizer_.take(whole);
    return restored;
  }
  if (!options_.cut) {
    auto restored = kept.restore(optimizer_, identity());
    if (restored) optimizer_.put();
    return restored;
  }
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
  optimizer_.fetch();
  if (!options_.cut) return writes() ? kept.save(optimizer_, state, identity()) : "";
  if (options_.checkpoints.slices) {
    const bool first = (!options_.data || options_.data->rank() == 0) && first_of_context();
    return first ? kept.save_slices(optimizer_, *options_.cut, state, identity()) : "";
  }
  const Optimizer whole = options_.cut->joined(optimizer_);
  return writes() ? kept.save(whole, state, identity()) : "";
}

double Trainer::norm() const {
  if (optimizer_.shards()) return optimizer_.shards()->grad_norm(optimizer_.params(), ctx_);
  return options_.cut ? options_.cut->grad_norm(ctx_) : grad_norm(optimizer_.params(), ctx_);
}

/// Forward and backward of this rank's micro-batches; the gradients are those of the whole step afterwards,
/// and `done` has its mean loss, or what is not late of it, and their norm where they are on the CPU.
void Trainer::learn_step(const Learn& learn, ExampleOrder& order, TrainState& state, GradTree* tree,
                         Done& done) {
  const int ranks = options_.data ? options_.data->ranks() : 1,
            rank = options_.data ? options_.data->rank() : 0;
  const Index own = options_.micro_batches / ranks, from = rank * own;
  const double weight = 1.0 / static_cast<double>(options_.micro_batches);
  std::vector<Index> chosen(static_cast<std::size_t>(options_.micro_rows));
  std::vector<double> losses;
  DeviceSteps* const there = optimizer_.there();
  if (there)
    there->begin(own);
  else
    optimizer_.params().zero_grads();
  for (Index number = from; number < from + own; ++number) {
    for (Index i = 0; i < options_.micro_rows; ++i)
      chosen[static_cast<std::size_t>(i)] = order.at(state.examples + number * options_.micro_rows + i);
    LateLoss late{.sum = there ? there->losses(number) : AnyView{}};
    losses.push_back(learn({state.step, number, chosen, seed_of(options_.seed, state.step, number), weight,
                            there ? &late : nullptr}));
    if (there) done.shares.push_back(weight * late.share);
    if (masters_ && !there) masters_->take_grads(ctx_);
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
  for (const double one : all) done.loss += weight * one;
  if (!there) done.norm = norm();
}

/// On a device nothing waits: the norm, what it scales and whether it is finite stay there.
void Trainer::take_step(Done& done, const Finite& require_finite) {
  if (optimizer_.there()) {
    optimizer_.step(done.rate, ctx_, options_.clip);
    done.ticket = optimizer_.there()->send();
    return;
  }
  require_finite("loss", done.loss, done.step);
  require_finite("gradient's norm", done.norm, done.step);
  if (options_.clip > 0 && done.norm + 1e-6 > options_.clip)
    scale_grads(optimizer_.params(), options_.clip / (done.norm + 1e-6), ctx_);
  optimizer_.step(done.rate, ctx_);
  if (masters_) masters_->publish(ctx_);
}

void Trainer::refuse(std::string_view what, double value, Index step, const std::string& checkpoint) const {
  std::string bad = first_not_finite(optimizer_.params());
  bad = bad.empty() ? "every parameter and gradient is finite: look at the data of this step"
                    : "the first bad tensor is " + bad;
  throw Error(ErrorKind::bad_argument,
              text("trainer: the ", what, " of step ", step, " is ", value, "; ", bad,
                   "; the last good checkpoint is ", checkpoint.empty() ? "none" : checkpoint));
}

void Trainer::read_figures(Done& done) const {
  if (done.ticket < 0) return;
  const Index ticket = std::exchange(done.ticket, -1);
  const DeviceSteps::Figures figures = optimizer_.there()->read(ticket);
  done.norm = figures.norm;
  // From this step on none was taken.
  if (!std::isfinite(done.norm))
    optimizer_.set_steps(optimizer_.steps() - (optimizer_.there()->sent() - ticket));
  for (std::size_t i = 0; i < done.shares.size(); ++i) done.loss += done.shares[i] * figures.losses[i];
}

/// How it ended before its last step; "": it did not.
std::string Trainer::words_of(const TrainResult& r, bool tired, bool keeps) const {
  if (r.ending == Ending::early)
    return tired ? text("stopped early at step ", r.step, ": no better than ", r.best, " for ",
                        options_.patience, " judgements")
                 : text("stopped at step ", r.step, ": its time is up");
  if (r.ending != Ending::interrupted) return "";
  return text("interrupted at step ", r.step, "; ",
              keeps ? "saved " + r.checkpoint + ": run again to go on"
                    : "nothing is saved: give a folder to keep checkpoints");
}

/// From the newest checkpoint, if there is one; what is damaged in the folder, in sentences.
std::vector<std::string> Trainer::resume(const Checkpoints& kept, TrainState& state, TrainResult& result) {
  auto restored = restore(kept);
  if (!restored) return {};
  require(restored->state.seed == options_.seed, ErrorKind::bad_argument, "trainer", restored->path,
          " was trained with seed ", restored->state.seed, ", not ", options_.seed,
          "; give the same seed or another folder");
  state = restored->state;
  result.checkpoint = restored->path;
  if (masters_ && !optimizer_.there()) masters_->publish(ctx_);
  return std::move(restored->damaged);
}

/// What a run that threw has left; the others are zeroed by the step.
void Trainer::clear_grads() const {
  if (optimizer_.there())
    optimizer_.there()->clear();
  else if (masters_)
    masters_->zero_grads();
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
    damaged = resume(*kept, state, result);
    if (!result.checkpoint.empty()) saved = state.step;
  }
  const Index first = state.step;
  agree_on(first);
  clear_grads();
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
  const Finite require_finite = [&](std::string_view what, double value, Index step) {
    if (std::isfinite(value)) return;
    progress.finish();
    refuse(what, value, step, result.checkpoint);
  };
  Done pending;  // the last step, before it is written down; of step 0: none
  const auto read_pending = [&] {
    read_figures(pending);
    require_finite("loss", pending.loss, pending.step - 1);
    require_finite("gradient's norm", pending.norm, pending.step - 1);
  };

  const auto tired = [&] { return options_.patience > 0 && state.since_best >= options_.patience; };
  const auto since_start = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto late = [&] { return options_.seconds > 0 && since_start() >= options_.seconds; };
  // Ranks stop together: what one wishes is heard by all after the step.
  const auto wishes = [&] { return late() ? Wish::late : interruption(); };
  const auto settle = [&](std::optional<double> judged = {}) {
    if (pending.step == 0) return;
    read_pending();
    const Done& d = pending;
    const double seconds = since_start();
    result.loss = d.loss;
    log.write({.step = d.step,
               .examples = d.examples,
               .loss = d.loss,
               .rate = d.rate,
               .norm = d.norm,
               .seconds = seconds,
               .judged = judged});
    progress.update(d.step, d.loss, (d.step - first) * options_.micro_rows * options_.micro_batches, seconds);
    pending = {};
  };
  Wish wish = alone() ? wishes() : Wish::none;
  while (state.step < options_.steps && !tired() && wish == Wish::none) {
    Done done{.step = state.step, .rate = options_.rate.at(state.step)};
    learn_step(learn, order, state, tree ? &*tree : nullptr, done);
    if (!alone()) wish = hear_all(wishes(), done);
    take_step(done, require_finite);
    done.step = ++state.step, done.examples = state.examples;
    settle();
    pending = std::move(done);
    // On a device the figures of a step are read when the next one has begun, unless somebody looks now.
    std::optional<double> judged;
    if (options_.judge_every > 0 && state.step % options_.judge_every == 0) {
      read_pending();
      judged = judge();
      if (*judged < state.best)
        state.best = *judged, state.since_best = 0;
      else
        ++state.since_best;
    }
    const bool saves = options_.save_every > 0 && state.step % options_.save_every == 0;
    if (!optimizer_.there() || judged || saves) settle(judged);
    if (saves) save();
    if (alone()) wish = wishes();
  }
  settle();
  if (state.step < options_.steps)
    result.ending = !tired() && wish == Wish::interrupted ? Ending::interrupted : Ending::early;
  save();
  result.step = state.step;
  result.best = state.best;
  progress.finish();
  if (const std::string words = words_of(result, tired(), kept.has_value()); !words.empty())
    progress.say(words);
  return result;
}

}  // namespace headwise
