#include "headwise/train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "headwise/base/random.h"
#include "headwise/train/data.h"
#include "headwise/train/interrupt.h"
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
  require(!masters || &masters->params() == &optimizer.params(), ErrorKind::bad_argument, "trainer",
          "the optimizer does not hold the masters' parameters; make it of masters.params()");
}

RunIdentity Trainer::identity() const {
  return {text(options_.config, " | examples=", examples_, " micro_rows=", options_.micro_rows,
               " micro_batches=", options_.micro_batches, " clip=", options_.clip,
               " rate=", options_.rate.describe()),
          numerics_id(ctx_)};
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
    if (auto restored = kept->restore(optimizer_, identity())) {
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
  Progress progress(options_.out, first, options_.steps, options_.screen);
  for (const std::string& sentence : damaged) progress.say("passed over: " + sentence);
  if (saved >= 0) progress.say(text("resumed from ", result.checkpoint));
  TrainLog log(options_.log, first);
  const Interrupt interrupt;
  const auto start = std::chrono::steady_clock::now();
  ExampleOrder order(examples_, options_.seed);
  std::vector<Index> chosen(static_cast<std::size_t>(options_.micro_rows));
  const auto save = [&] {
    if (kept && saved != state.step)
      result.checkpoint = kept->save(optimizer_, state, identity()), saved = state.step;
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
  while (state.step < options_.steps && !tired() && !late() && !Interrupt::wished()) {
    const double rate = options_.rate.at(state.step);
    const double weight = 1.0 / static_cast<double>(options_.micro_batches);
    optimizer_.params().zero_grads();
    double loss = 0;
    for (Index number = 0; number < options_.micro_batches; ++number) {
      for (Index& e : chosen) e = order.at(state.examples++);
      loss +=
          weight * learn({state.step, number, chosen, seed_of(options_.seed, state.step, number), weight});
      if (masters_) masters_->take_grads(ctx_);
    }
    if (!std::isfinite(loss)) refuse("loss", loss);
    const double norm = grad_norm(optimizer_.params(), ctx_);
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
  }
  if (state.step < options_.steps)
    result.ending = !tired() && Interrupt::wished() ? Ending::interrupted : Ending::early;
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
