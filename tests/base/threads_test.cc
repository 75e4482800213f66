// ThreadPool: every task once, nesting, limits, fork, and the floating environment on both sides.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "headwise/base/float_env.h"
#include "tests/base/sentence.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headwise {
namespace {

/// What a host with its own ideas may have set: flush to zero, denormals are zero, round up.
class HostileFloats {
 public:
  HostileFloats() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(saved_ | 0x8040u | 0x4000u);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (std::uint64_t{1} << 24) | (std::uint64_t{1} << 22)));
#endif
  }
  ~HostileFloats() {
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(saved_));
#endif
  }
  HostileFloats(const HostileFloats&) = delete;
  HostileFloats& operator=(const HostileFloats&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_ = 0;
#else
  std::uint64_t saved_ = 0;
#endif
};

/// volatile: computed where it stands, under the environment of the moment.
bool denormals_kept() {
  volatile float small = std::numeric_limits<float>::min();
  volatile float half = small * 0.5f;
  return half != 0.0f;
}
bool rounds_to_nearest() {
  volatile float one = 1.0f, tiny = 0x1p-30f;
  volatile float sum = one + tiny;
  return sum == 1.0f;
}

TEST(ThreadPool, EveryTaskRunsOnceForAThousandRounds) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<std::atomic<int>> seen(97);
    for (int round = 1; round <= 1000; ++round) {
      pool.parallel_for(97, [&](Index task, int worker) {
        if (worker < 0 || worker >= threads) std::abort();
        seen[static_cast<std::size_t>(task)].fetch_add(1, std::memory_order_relaxed);
      });
      for (auto& s : seen) ASSERT_EQ(s.load(std::memory_order_relaxed), round);
    }
  }
}

TEST(ThreadPool, PlainWritesOfWorkersAreSeenByTheCaller) {
  ThreadPool pool(4);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> out(64, -1);
    pool.parallel_for(64, [&](Index task, int) { out[static_cast<std::size_t>(task)] = round; });
    for (const int x : out) ASSERT_EQ(x, round);
  }
}

TEST(ThreadPool, ZeroAndOneTaskAndParkedWorkers) {
  ThreadPool pool(3);
  int calls = 0;
  pool.parallel_for(0, [&](Index, int) { ++calls; });
  EXPECT_EQ(calls, 0);
  pool.parallel_for(1, [&](Index task, int worker) { calls += task == 0 && worker == 0; });
  EXPECT_EQ(calls, 1);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // past the spin: workers are parked now
    std::atomic<int> n{0};
    pool.parallel_for(30, [&](Index, int) { n.fetch_add(1, std::memory_order_relaxed); });
    ASSERT_EQ(n.load(), 30);
  }
}

TEST(ThreadPool, AllThreadsWorkAtOnceAlsoAfterParking) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    if (round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> here{0}, alone{0};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    pool.parallel_for(4, [&](Index, int) {
      here.fetch_add(1);  // nobody goes on before all four have come
      while (here.load() < 4) {
        if (std::chrono::steady_clock::now() > limit) {
          alone.fetch_add(1);
          return;
        }
        std::this_thread::yield();
      }
    });
    ASSERT_EQ(alone.load(), 0);
  }
}

TEST(ThreadPool, ALimitKeepsHigherWorkersOut) {
  ThreadPool pool(4);
  for (int limit = 1; limit <= 6; ++limit) {
    std::atomic<int> highest{0}, n{0};
    pool.parallel_for(
        200,
        [&](Index, int worker) {
          int seen = highest.load();
          while (seen < worker && !highest.compare_exchange_weak(seen, worker)) {
          }
          n.fetch_add(1);
        },
        limit);
    EXPECT_LT(highest.load(), std::min(limit, 4));
    EXPECT_EQ(n.load(), 200);
  }
}

TEST(ThreadPool, NestedCallsRunInlineAsWorkerZero) {
  ThreadPool pool(3), other(2);
  std::atomic<int> inner{0}, wrong{0};
  pool.parallel_for(8, [&](Index, int) {
    const auto here = std::this_thread::get_id();
    const auto body = [&](Index, int worker) {
      inner.fetch_add(1);
      if (worker != 0 || std::this_thread::get_id() != here) wrong.fetch_add(1);
    };
    pool.parallel_for(5, body);
    other.parallel_for(5, body);
  });
  EXPECT_EQ(inner.load(), 80);
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, EachThreadMayHaveItsOwn) {
  std::atomic<Index> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c)
    callers.emplace_back([&] {
      ThreadPool pool(2);
      for (int round = 0; round < 50; ++round)
        pool.parallel_for(10, [&](Index task, int) { sum.fetch_add(task, std::memory_order_relaxed); });
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(sum.load(), 8 * 50 * 45);
}

TEST(ThreadPool, MovesKeepTheWorkers) {
  ThreadPool a(2);
  ThreadPool b = std::move(a);
  ThreadPool c(1);
  c = std::move(b);
  EXPECT_EQ(c.threads(), 2);
  std::atomic<int> n{0};
  c.parallel_for(10, [&](Index, int) { n.fetch_add(1); });
  EXPECT_EQ(n.load(), 10);
}

TEST(ThreadPool, BadCountsAreSentences) {
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { ThreadPool pool(0); }),
            "threads: got 0; the caller counts, so give 1 or more");
}

TEST(ThreadPool, AvailableFollowsTheAffinityMask) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(ThreadPool::available(), 1);
  EXPECT_LE(ThreadPool::available(), CPU_COUNT(&before));
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ThreadPool::available(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

TEST(FloatEnvironment, BodiesKeepDenormalsAndTheCallersSettingComesBack) {
  ThreadPool pool(3);
  std::atomic<int> flushed{0}, skewed{0};
  const auto body = [&](Index, int) {
    flushed += !denormals_kept();
    skewed += !rounds_to_nearest();
  };
  {
    const HostileFloats host;
    ASSERT_FALSE(denormals_kept());
    ASSERT_FALSE(rounds_to_nearest());
    for (int round = 0; round < 100; ++round) {
      pool.parallel_for(16, body);  // on the workers
      pool.parallel_for(1, body);   // inline
      ASSERT_FALSE(denormals_kept());
      ASSERT_FALSE(rounds_to_nearest());
    }
  }
  EXPECT_EQ(flushed.load(), 0);
  EXPECT_EQ(skewed.load(), 0);
  EXPECT_TRUE(denormals_kept());
  EXPECT_TRUE(rounds_to_nearest());
}

TEST(FloatEnvironment, WorkersStartedUnderAHostileHostComputeTheSame) {
  std::atomic<int> flushed{0};
  {
    const HostileFloats host;  // new threads inherit the control word of their maker
    ThreadPool pool(4);
    pool.parallel_for(64, [&](Index, int) { flushed += !denormals_kept(); });
  }
  EXPECT_EQ(flushed.load(), 0);
}

TEST(FloatEnvironment, StickyFlagsOfTheBodyStayInside) {
  std::feclearexcept(FE_ALL_EXCEPT);
  ThreadPool pool(1);
  pool.parallel_for(1, [](Index, int) {
    volatile float zero = 0.0f;
    volatile float inf = 1.0f / zero;
    (void)inf;
  });
  EXPECT_EQ(std::fetestexcept(FE_DIVBYZERO), 0);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not start threads in a forked child
TEST(ThreadPool, AForkedChildMakesItsWorkersAgain) {
  ThreadPool pool(3);
  std::atomic<int> before{0};
  pool.parallel_for(10, [&](Index, int) { before.fetch_add(1); });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(120);  // a child that waits for workers it does not have dies by signal
    pool.after_fork();
    std::atomic<int> n{0};
    for (int round = 0; round < 100; ++round) pool.parallel_for(10, [&](Index, int) { n.fetch_add(1); });
    _exit(n.load() == 1000 && pool.threads() == 3 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::atomic<int> after{0};
  pool.parallel_for(10, [&](Index, int) { after.fetch_add(1); });
  EXPECT_EQ(after.load(), 10);
}

TEST(ThreadPool, AForkedChildCanDropThePool) {
  auto* pool = new ThreadPool(3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(120);
    delete pool;
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  delete pool;
}
#endif

}  // namespace
}  // namespace headwise
