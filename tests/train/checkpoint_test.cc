// Checkpoints: resuming is never having stopped; kills, full disks and damage leave the newest whole one.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/train/checkpoints/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iomanip>

#include "headwise/base/random.h"
#include "headwise/model/safetensors.h"
#include "headwise/train/checkpoints/crc32c.h"
#include "tests/base/sentence.h"
#include "tests/model/scratch_folder.h"
#include "tests/train/toy_run.h"

namespace headwise {
namespace {

std::string after_steps(Index steps) {
  ToyRun run;
  while (run.state.step < steps) run.step();
  return run.bytes();
}

int files_in(const std::string& folder) {
  int n = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

TEST(Crc32c, KnownAnswers) {
  Crc32c nine, empty, spans;
  nine.add("123456789");
  EXPECT_EQ(nine.value(), 0xe3069283u);
  EXPECT_EQ(empty.value(), 0u);
  const std::string zeros(32, '\0');  // RFC 3720, B.4
  spans.add(std::as_bytes(std::span(zeros)));
  EXPECT_EQ(spans.value(), 0x8a9136aau);
  for (std::size_t cut = 0; cut < 21; ++cut) {
    const std::string_view text = "the quick brown foxes";
    Crc32c whole, parts;
    whole.add(text);
    parts.add(std::as_bytes(std::span(text.substr(0, cut))));
    parts.add(std::as_bytes(std::span(text.substr(cut))));
    EXPECT_EQ(parts.value(), whole.value()) << cut;
  }
}

TEST(Checkpoints, ResumingIsNeverHavingStopped) {
  const ScratchFolder folder;
  const std::string want = after_steps(60);
  Checkpoints kept(folder / "run");
  ToyRun first;
  EXPECT_FALSE(first.resume(kept));
  for (int i = 0; i < 20; ++i) first.step();
  const std::string path = kept.save(first.optimizer, first.state, first.identity());
  EXPECT_EQ(path, folder / "run/step-000000000020.safetensors");
  for (int i = 0; i < 5; ++i) first.step();  // lost: never saved
  for (const int threads : {1, 4, 1}) {      // the third resumes the same file a second time
    ToyRun again(threads);
    ASSERT_TRUE(again.resume(kept));
    EXPECT_EQ(again.state.step, 20);
    while (again.state.step < 60) again.step();
    EXPECT_EQ(again.bytes(), want) << threads;
  }
}

TEST(Checkpoints, OnlyTheNewestAreKept) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path(), {.keep = 3});
  ToyRun run;
  for (int i = 0; i < 7; ++i) run.step(), kept.save(run.optimizer, run.state, run.identity());
  ASSERT_EQ(kept.files().size(), 3u);
  EXPECT_EQ(kept.files()[0], folder / "step-000000000007.safetensors");
  EXPECT_EQ(kept.files()[2], folder / "step-000000000005.safetensors");
  folder.file("notes.txt", "stays");
  folder.file("step-x.safetensors", "stays");
  run.step();
  kept.save(run.optimizer, run.state, run.identity());
  EXPECT_EQ(files_in(folder.path()), 5);
}

TEST(Checkpoints, DamagedOnesArePassedOver) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path());
  ToyRun run;
  run.step();
  const std::string old_path = kept.save(run.optimizer, run.state, run.identity()), old_bytes = run.bytes();
  run.step();
  const std::string path = kept.save(run.optimizer, run.state, run.identity()), whole = content_of(path);
  const auto expect_old = [&](const std::string& bytes, std::string_view what) {
    folder.file("step-000000000002.safetensors", bytes);
    ToyRun again;
    const auto restored = kept.restore(again.optimizer, again.identity());
    ASSERT_TRUE(restored) << what;
    again.state = restored->state;
    EXPECT_EQ(restored->path, old_path) << what;
    EXPECT_EQ(restored->damaged.size(), 1u);
    EXPECT_EQ(again.bytes(), old_bytes) << what;
  };
  for (std::size_t n = 0; n < whole.size(); n += 1 + whole.size() / 97)
    expect_old(whole.substr(0, n), text("cut at ", n));
  expect_old(whole + "x", "longer");
  // A bit of every field: the header has them all; then of the numbers. Spaces that pad the header mean
  // nothing.
  const std::size_t header = whole.find("}  ") == std::string::npos ? whole.size() : whole.find("}  ");
  for (std::size_t i = 0; i < whole.size(); i += i < header ? 7 : 31) {
    if (i > header && whole[i] == ' ') continue;
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 7)));
    expect_old(flipped, text("bit of byte ", i));
  }
  folder.file("step-000000000002.safetensors", whole.substr(0, 100));
  folder.file("step-000000000001.safetensors", "");
  ToyRun again;
  const std::string before = again.bytes();
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { again.resume(kept); }).substr(0, folder.path().size() + 90),
      ("checkpoint: " + folder.path() +
       ": none of its 2 checkpoints is whole; move them away to start afresh. The newest: safetensors: " +
       folder.path())
          .substr(0, folder.path().size() + 90));
  EXPECT_EQ(again.bytes(), before);
}

TEST(Checkpoints, OthersAreRefused) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path());
  ToyRun run;
  run.step();
  const std::string path = kept.save(run.optimizer, run.state, run.identity()),
                    where = "checkpoint: " + path + ": ";
  ToyRun again;
  const std::string before = again.bytes();
  TrainingIdentity id = again.identity();
  id.config = "toy rows=7";
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { kept.restore(again.optimizer, id); }),
            where +
                "was written with config \"toy rows=6 columns=9\" but this run has \"toy rows=7\"; give the "
                "same config "
                "or another folder");
  id = again.identity();
  id.numerics = "headwise 9 cpu/x";
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { kept.restore(again.optimizer, id); }),
            where + "was written with numerics \"" + again.identity().numerics +
                "\" but this run has \"headwise 9 cpu/x\"; run the same version at the same ISA level, or "
                "accept that the "
                "bits differ (other_numerics)");
  EXPECT_EQ(before, again.bytes());
  Checkpoints lenient(folder.path(), {.other_numerics = OtherNumerics::accept});
  EXPECT_TRUE(lenient.restore(again.optimizer, id));
  ParamSet other;
  other.add("layer.w", {6, 8});
  other.add("layer.b", {6});
  Optimizer odd(other, AdamWOptions{}), sgd(again.params, SgdOptions{.momentum = 0.5});
  id = again.identity();
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { kept.restore(odd, id); }),
            where +
                "\"adamw.m.layer.w\" must be f32 [6 8]; the file has another shape or dtype: it belongs to "
                "another model");
  EXPECT_NE(sentence_of(ErrorKind::bad_argument, [&] { kept.restore(sgd, id); })
                .find("was written with optimizer \"adamw "),
            std::string::npos);
  ParamSet more;
  more.add("layer.w", {6, 9});
  Optimizer fewer(more, AdamWOptions{});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { kept.restore(fewer, id); }),
            where + "holds 6 tensors but this model has 3; it belongs to another model");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { Checkpoints(folder.path(), {.keep = 0}); }),
            "checkpoint: keep is 0; keep 1 checkpoint or more");
}

/// The file again with another text behind one key and one more tensor (none: no name), every CRC right. The
/// rule of the manifest's CRC holds for every format: a later one can be told from a damaged file.
void rewrite(const std::string& path, const std::string& key, const std::string& word,
             const NamedTensor& more = {}) {
  Safetensors file(path, {.reading = Reading::copied});
  Metadata metadata = file.metadata();
  std::vector<NamedTensor> tensors;
  Crc32c crc;
  for (auto& [name, value] : metadata) {
    if (name == key) value = word;
    if (name != "headwise.manifest_crc32c") crc.add(text(name.size(), ' ', value.size(), ' ', name, value));
  }
  for (const SafetensorsEntry& e : file.entries()) tensors.push_back({e.name, file.view(e.name)});
  if (!more.name.empty()) tensors.push_back(more);
  for (const NamedTensor& t : tensors) {
    std::string line = text(t.name.size(), ' ', t.name, ' ', t.value.dtype);
    for (int axis = 0; axis < t.value.rank; ++axis) line += text(' ', t.value.size[axis]);
    crc.add(line + ';');
  }
  std::ostringstream hex;
  hex << std::hex << std::setw(8) << std::setfill('0') << crc.value();
  metadata.back().second = hex.str();
  write_safetensors(path, tensors, metadata);
}

TEST(Checkpoints, AnotherFormatIsNamed) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path());
  ToyRun run;
  const std::string path = kept.save(run.optimizer, run.state, run.identity());
  rewrite(path, "headwise.checkpoint", "2");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { run.resume(kept); }),
            "checkpoint: " + path + ": has format 2 but this library reads 1; use the version that wrote it");
}

TEST(Checkpoints, CountersNoRunHasAreRefused) {
  for (const auto& [key, word] : {std::pair{"examples", "-7"},
                                  {"examples", "9223372036854775807"},
                                  {"step", "-1"},
                                  {"since_best", "-1"},
                                  {"optimizer_steps", "-2"},
                                  {"best_bits", "18446744073709551615"}}) {
    const ScratchFolder folder;
    Checkpoints kept(folder.path());
    ToyRun run;
    rewrite(kept.save(run.optimizer, run.state, run.identity()), key, word);
    ToyRun again;
    const std::string before = again.bytes();
    EXPECT_NE(
        sentence_of(ErrorKind::bad_argument, [&] { again.resume(kept); }).find("no run of headwise wrote it"),
        std::string::npos)
        << key << ' ' << word;
    EXPECT_EQ(again.bytes(), before);
  }
}

TEST(Checkpoints, OneMoreTensorIsAnotherModel) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path());
  ToyRun run;
  const std::string path = kept.save(run.optimizer, run.state, run.identity());
  Tensor one(DType::u8, {1});
  rewrite(path, "", "", {"zzz", one.view()});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { run.resume(kept); }),
            "checkpoint: " + path + ": holds 7 tensors but this model has 6; it belongs to another model");
}

TEST(Checkpoints, AFullDiskLeavesTheOldOne) {
  const ScratchFolder folder;
  Checkpoints kept(folder.path());
  ToyRun run;
  run.step();
  const std::string path = kept.save(run.optimizer, run.state, run.identity()), saved = run.bytes();
  const auto bytes = std::filesystem::file_size(path);
  struct sigaction ignore {
  }, was{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &was);
  struct rlimit old {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  run.step();
  for (rlim_t level = 0; level < bytes; level += 1 + bytes / 40) {
    const struct rlimit few { level, old.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &few);
    const std::string sentence =
        sentence_of(ErrorKind::bad_argument, [&] { kept.save(run.optimizer, run.state, run.identity()); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_NE(sentence.find("cannot write: File too large; free some space or choose another folder"),
              std::string::npos);
    EXPECT_EQ(files_in(folder.path()), 1) << level;
    ToyRun again;
    ASSERT_TRUE(again.resume(kept));
    EXPECT_EQ(again.bytes(), saved);
  }
  ::sigaction(SIGXFSZ, &was, nullptr);
  kept.save(run.optimizer, run.state, run.identity());
  EXPECT_EQ(kept.files().size(), 2u);
}

TEST(Checkpoints, UnwritableFoldersAreNamed) {
  const ScratchFolder folder;
  folder.file("file", "");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { Checkpoints(folder / "file/run"); }),
            "checkpoint: " + (folder / "file/run") + ": cannot make this folder: Not a directory");
  Checkpoints kept(folder / "run");
  ToyRun run;
  // Root may write everywhere: take another user's eyes for one call.
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  std::filesystem::permissions(folder / "run", std::filesystem::perms(0555));
  const bool root = ::geteuid() == 0;
  ASSERT_TRUE(!root || ::seteuid(65534) == 0);
  const std::string sentence =
      sentence_of(ErrorKind::bad_argument, [&] { kept.save(run.optimizer, run.state, run.identity()); });
  ASSERT_TRUE(!root || ::seteuid(0) == 0);
  EXPECT_NE(sentence.find(
                "cannot create: Permission denied; change its rights, or choose a place this user may use"),
            std::string::npos)
      << sentence;
}

/// Trains and saves after every step until it is killed; the folder alone carries it from life to life.
[[noreturn]] void live(const std::string& folder) {
  try {
    Checkpoints kept(folder);
    ToyRun run;
    run.resume(kept);
    for (;;) run.step(), kept.save(run.optimizer, run.state, run.identity());
  } catch (...) {
  }
  ::_exit(7);
}

TEST(Checkpoints, KillsAtRandomPointsLoseNothing) {
  const ScratchFolder folder;
  const int kills = std::getenv("HEADWISE_SLOW") ? 1000 : 50;
  Index reached = 0;
  useconds_t scale = 1;  // of the time a life has: doubled until the disk and the cores let one save
  for (int k = 0; k < kills; ++k) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) live(folder.path());
    const auto wait = Philox::block(2026, {static_cast<std::uint32_t>(k), 0, 0, 0})[0] % 20000;
    ::usleep(scale * (1000 + wait));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a life ended by itself: code " << WEXITSTATUS(status);
    Checkpoints kept(folder.path());
    ToyRun run;
    const auto restored = kept.restore(run.optimizer, run.identity());
    if (!restored) {
      scale = std::min<useconds_t>(2 * scale, 512);
      continue;
    }
    EXPECT_TRUE(restored->damaged.empty());  // a kill leaves a file whole or not there
    run.state = restored->state;
    ASSERT_GE(run.state.step, reached);
    reached = run.state.step;
    if (k % 10 == 9) {
      EXPECT_EQ(run.bytes(), after_steps(reached)) << "after kill " << k;
    }
  }
  EXPECT_GT(reached, 0);
  Checkpoints kept(folder.path());
  ToyRun run;
  ASSERT_TRUE(run.resume(kept));
  EXPECT_EQ(run.bytes(), after_steps(run.state.step));
  run.step();
  kept.save(run.optimizer, run.state, run.identity());
  EXPECT_EQ(files_in(folder.path()), 2);  // what the killed left behind is gone
}

}  // namespace
}  // namespace headwise
