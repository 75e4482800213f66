// Trainer: any split of a run gives the bits of one, bad numbers and interrupts end it in words, logs and
// progress are whole.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <sstream>

#include "headwise/base/context.h"
#include "headwise/train/train_log.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

/// Fits a line through noisy points; the noise of a micro-batch hangs on its seed.
struct Line {
  Context ctx;
  ParamSet params{DType::f32, 4};
  Learned w = params.add("w", {3}, Init::normal(1));
  Optimizer optimizer{params, AdamWOptions{}};
  Index calls = 0;

  explicit Line(int threads = 1) : ctx({.threads = threads}) {}
  double learn(const MicroBatch& micro) {
    ++calls;
    double loss = 0;
    auto* x = static_cast<float*>(w.value().data);
    auto* g = static_cast<float*>(w.grad().data);
    for (const Index e : micro.examples)
      for (Index i = 0; i < 3; ++i) {
        const auto a = static_cast<float>(normal_at(9, 3 * e + i) + 0.01 * normal_at(micro.seed, i));
        const float off = x[i] * a - 2 * a;
        loss += static_cast<double>(off * off) / static_cast<double>(micro.examples.size());
        g[i] += static_cast<float>(micro.weight) * 2 * off * a / static_cast<float>(micro.examples.size());
      }
    return loss;
  }
  TrainResult train(TrainerOptions options, const Judge& judge = {}) {
    options.rate = Schedule::cosine(0.1, 5, 60);
    options.micro_rows = 2, options.micro_batches = 3, options.clip = 5, options.seed = 12,
    options.config = "line";
    return Trainer(optimizer, 31, options, ctx).run([&](const MicroBatch& m) { return learn(m); }, judge);
  }
  std::string bytes() const {
    std::string out = text(optimizer.steps(), ' ');
    out.append(static_cast<const char*>(w.value().data), 12);
    for (const auto& m : optimizer.moments()) out.append(static_cast<const char*>(m.value.data), 12);
    return out;
  }
};

TEST(Trainer, AnySplitOfARunGivesTheBitsOfOne) {
  Line whole;
  const TrainResult result = whole.train({.steps = 60});
  EXPECT_EQ(result.ending, Ending::finished);
  EXPECT_EQ(result.step, 60);
  EXPECT_EQ(whole.calls, 180);
  EXPECT_LT(result.loss, 2);  // from about 15
  EXPECT_TRUE(result.checkpoint.empty());
  const ScratchFolder folder;
  for (const int until : {7, 8, 33, 60}) {
    Line part(until % 3 + 1);
    const TrainResult r = part.train({.steps = until, .folder = folder / "run", .save_every = 5});
    EXPECT_EQ(r.step, until);
    if (until == 60) {
      EXPECT_EQ(part.bytes(), whole.bytes());
    }
  }
}

TEST(Trainer, MicroBatchesComeInOrderWithSeedsOfTheirOwn) {
  Line line;
  std::vector<std::uint64_t> seeds;
  std::vector<Index> examples;
  Trainer trainer(line.optimizer, 6, {.steps = 2, .micro_rows = 2, .micro_batches = 3, .seed = 3}, line.ctx);
  Index expected = 0;
  trainer.run([&](const MicroBatch& m) {
    EXPECT_EQ(m.step * 3 + m.number, expected++);
    EXPECT_EQ(m.weight, 1.0 / 3);
    seeds.push_back(m.seed);
    examples.insert(examples.end(), m.examples.begin(), m.examples.end());
    return 1.0;
  });
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
  std::sort(examples.begin(), examples.end());
  EXPECT_EQ(examples, (std::vector<Index>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}));
}

TEST(Trainer, ABadLossNamesStepTensorAndCheckpoint) {
  const ScratchFolder folder;
  const auto run = [&](int bad_step, bool bad_gradient, bool bad_loss, const std::string& at) {
    Line line;
    Trainer trainer(line.optimizer, 31, {.steps = 20, .folder = at, .save_every = at.empty() ? 0 : 5},
                    line.ctx);
    return sentence_of(ErrorKind::bad_argument, [&] {
      trainer.run([&](const MicroBatch& m) {
        const bool now = m.step == bad_step;
        if (now && bad_gradient) static_cast<float*>(line.w.grad().data)[1] = INFINITY;
        return now && bad_loss ? std::nan("") : 1.0;
      });
    });
  };
  EXPECT_EQ(run(12, true, true, folder / "a"),
            "trainer: the loss of step 12 is nan; the first bad tensor is w (gradient); the last good "
            "checkpoint is " +
                (folder / "a/step-000000000010.safetensors"));
  EXPECT_EQ(run(3, true, false, folder / "b"),
            "trainer: the gradient's norm of step 3 is inf; the first bad tensor is w (gradient); the last "
            "good checkpoint is none");
  EXPECT_EQ(run(0, false, true, ""),
            "trainer: the loss of step 0 is nan; every parameter and gradient is finite: look at the data of "
            "this step; the "
            "last good checkpoint is none");
}

TEST(Trainer, CtrlCSavesAndSaysWhere) {
  const ScratchFolder folder;
  Line whole;
  whole.train({.steps = 60});
  std::ostringstream out;
  Line first;
  TrainerOptions options{.steps = 60, .folder = folder / "run", .judge_every = 1, .out = &out};
  const auto before = std::signal(SIGINT, SIG_DFL);
  const TrainResult r = first.train(options, [&] {
    if (first.optimizer.steps() == 21) ::raise(SIGINT);
    return 1.0;
  });
  EXPECT_EQ(std::signal(SIGINT, before), SIG_DFL);
  EXPECT_EQ(r.ending, Ending::interrupted);
  EXPECT_EQ(r.step, 21);
  EXPECT_EQ(r.checkpoint, folder / "run/step-000000000021.safetensors");
  EXPECT_NE(out.str().find("interrupted at step 21; saved " + r.checkpoint + ": run again to go on\n"),
            std::string::npos);
  Line second(3);
  const TrainResult done = second.train(options, [] { return 1.0; });
  EXPECT_EQ(done.ending, Ending::finished);
  EXPECT_EQ(second.bytes(), whole.bytes());
  EXPECT_NE(out.str().find("resumed from " + r.checkpoint), std::string::npos);
}

TEST(Trainer, StopsEarlyAndStaysStopped) {
  const ScratchFolder folder;
  const double judged[] = {5, 4, 4.5, 4.2, 3.9, 4, 4, 4};
  TrainerOptions options{.steps = 60, .folder = folder / "run", .judge_every = 2, .patience = 3};
  std::size_t asked = 0;
  Line line;
  const auto judge = [&] { return judged[asked++]; };
  const TrainResult r = line.train(options, judge);
  EXPECT_EQ(r.ending, Ending::early);
  EXPECT_EQ(r.step, 16);
  EXPECT_EQ(r.best, 3.9);
  Line again;
  const TrainResult same = again.train(options, judge);
  EXPECT_EQ(same.step, 16);
  EXPECT_EQ(same.ending, Ending::early);
  EXPECT_EQ(asked, 8u);
}

TEST(Trainer, StopsWhenItsTimeIsUpAndGoesOnWithMore) {
  const ScratchFolder folder;
  TrainerOptions options{.steps = 60, .folder = folder / "run", .seconds = 1e-9};
  std::ostringstream out;
  options.out = &out;
  Line line;
  const TrainResult r = line.train(options);
  EXPECT_EQ(r.ending, Ending::early);
  EXPECT_EQ(r.step, 0);
  EXPECT_NE(out.str().find("stopped at step 0: its time is up"), std::string::npos) << out.str();
  options.seconds = 0;
  Line rest;
  EXPECT_EQ(rest.train(options).ending, Ending::finished);
}

TEST(Trainer, LogsHaveEveryStepOnceAlsoAfterACrash) {
  const ScratchFolder folder;
  for (const std::string_view end : {".csv", ".jsonl"}) {
    const std::string path = folder / text("log", end), run = folder / text("run", end);
    Line first, second;
    first.train({.steps = 12, .folder = run, .save_every = 10, .log = path});
    std::filesystem::remove(run + "/step-000000000012.safetensors");  // as if killed before the last save
    { std::ofstream(path, std::ios::app) << "13,0.5"; }
    second.train({.steps = 15, .folder = run, .log = path});
    std::istringstream in(content_of(path));
    std::string line;
    if (end == ".csv") {
      std::getline(in, line);
      EXPECT_EQ(line, "step,loss,rate,norm,examples,seconds,judged");
    }
    Index rows = 0;
    while (std::getline(in, line)) {
      ++rows;
      EXPECT_TRUE(line.starts_with(end == ".csv" ? text(rows, ',') : text("{\"step\":", rows, ","))) << line;
    }
    EXPECT_EQ(rows, 15);
  }
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { TrainLog("x.txt", 0); }),
            "training log: x.txt: end its name in .csv or .jsonl");
}

TEST(Trainer, MastersLearnForABf16Image) {
  Context ctx({.threads = 2});
  std::string bytes;
  const ScratchFolder folder;
  for (const int parts : {1, 2}) {
    for (int part = 1; part <= parts; ++part) {
      ParamSet image(DType::bf16, 1);
      const Learned w = image.add("w", {4}, Init::constant(1));
      MasterWeights masters(image);
      Optimizer optimizer(masters.params(), SgdOptions{.momentum = 0.5});
      Trainer trainer(optimizer, 8,
                      {.steps = 20 * part / parts,
                       .micro_batches = 2,
                       .rate = Schedule::constant(1e-3),
                       .folder = folder / text("run", parts)},
                      ctx, &masters);
      trainer.run([&](const MicroBatch& m) {
        for (Index i = 0; i < 4; ++i)
          store_double(w.grad().data, DType::bf16, i, m.weight * load_double(w.value().data, DType::bf16, i));
        return 1.0;
      });
      const std::string now(static_cast<const char*>(w.value().data), 8);
      if (part == parts) {
        EXPECT_TRUE(bytes.empty() || now == bytes);
        bytes = now;
      }
    }
  }
  EXPECT_LT(static_cast<float>(std::bit_cast<bf16>(static_cast<std::uint16_t>(
                static_cast<unsigned char>(bytes[0]) | static_cast<unsigned char>(bytes[1]) << 8))),
            0.97f);
}

TEST(Progress, LinesAndBars) {
  std::ostringstream lines, bar;
  Progress plain(&lines, 0, 100), moving(&bar, 50, 100, Screen::bar);
  plain.update(1, 2.5, 8, 0.5);
  plain.update(2, 2.4, 16, 1);  // too soon
  plain.update(40, 1.25, 320, 20);
  plain.update(100, 0.5, 800, 51);
  EXPECT_EQ(lines.str(),
            "step 1/100  loss 2.5000  16.0 examples/s  left 0:50\n"
            "step 40/100  loss 1.2500  16.0 examples/s  left 0:30\n"
            "step 100/100  loss 0.5000  15.7 examples/s  took 0:51\n");
  moving.update(75, 1, 25000, 3700);
  moving.say("a sentence");
  moving.update(100, 1, 50000, 7400);
  moving.finish();
  EXPECT_EQ(
      bar.str(),
      "\rstep 75/100 [==================>     ]  loss 1.0000  6.8 examples/s  left 1:01:40\na sentence\n"
      "\rstep 100/100 [========================]  loss 1.0000  6.8 examples/s  took 2:03:20\n");
  Progress silent(nullptr, 0, 1);
  silent.update(1, 1, 1, 1);
  EXPECT_EQ(clock_text(59.7), "1:00");
  EXPECT_EQ(clock_text(std::nan("")), "-");
}

TEST(Trainer, RefusesInWords) {
  Line line;
  const auto refusal = [&](const TrainerOptions& options, Index examples = 4) {
    return sentence_of(ErrorKind::bad_argument, [&] {
      Trainer(line.optimizer, examples, options, line.ctx).run([](const MicroBatch&) { return 0.0; });
    });
  };
  EXPECT_EQ(refusal({.steps = 1}, 0), "trainer: the data set is empty; give it one example or more");
  EXPECT_EQ(refusal({.steps = -1}), "trainer: steps is -1; give 0 or more");
  EXPECT_EQ(refusal({.steps = 1, .micro_rows = 0}),
            "trainer: got 1 micro-batches of 0 examples; give 1 or more of each");
  EXPECT_EQ(refusal({.steps = 1, .save_every = 5}),
            "trainer: save_every is set but there is no folder; name one");
  EXPECT_EQ(refusal({.steps = 1, .patience = 5}),
            "trainer: patience is set but nothing is judged; set judge_every");
  EXPECT_EQ(refusal({.steps = 1, .judge_every = 5}),
            "trainer: judge_every is 5 but no judge was given; give one or set it to 0");
  const ScratchFolder folder;
  refusal({.steps = 1, .seed = 1, .folder = folder / "run"});
  EXPECT_EQ(refusal({.steps = 2, .seed = 2, .folder = folder / "run"}),
            "trainer: " + (folder / "run/step-000000000001.safetensors") +
                " was trained with seed 1, not 2; give the same seed or another folder");
}

}  // namespace
}  // namespace headwise
