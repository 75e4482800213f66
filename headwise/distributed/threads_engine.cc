#include "headwise/distributed/threads_engine.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

namespace headwise {
namespace {

/// What all ranks share: a box of messages for each pair of ranks and tag.
struct Post {
  std::mutex lock;
  std::condition_variable news;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;  // (from, to, tag)
  std::vector<bool> left;                                                         // ranks that are done
};

class ThreadsEngine final : public Engine {
 public:
  ThreadsEngine(std::shared_ptr<Post> post, int rank, int ranks)
      : post_(std::move(post)), rank_(rank), ranks_(ranks) {}
  ~ThreadsEngine() override {
    const std::lock_guard held(post_->lock);
    post_->left[static_cast<std::size_t>(rank_)] = true;
    post_->news.notify_all();
  }
  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Outcome exchange(std::span<const Message> messages, int tag, double seconds) override {
    std::unique_lock held(post_->lock);
    for (const Message& m : messages) {
      if (!m.sends) continue;
      const auto* bytes = static_cast<const std::byte*>(m.data);
      post_->boxes[{rank_, m.rank, tag}].emplace_back(bytes, bytes + m.bytes);
    }
    post_->news.notify_all();
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (const Message& m : messages) {
      if (m.sends) continue;
      auto& box = post_->boxes[{m.rank, rank_, tag}];
      const bool came = post_->news.wait_until(
          held, end, [&] { return !box.empty() || post_->left[static_cast<std::size_t>(m.rank)]; });
      if (!came) return {.late = m.rank};
      if (box.empty()) return {.fault = text("rank ", m.rank, " has ended")};
      const std::vector<std::byte> got = std::move(box.front());
      box.pop_front();
      if (static_cast<Index>(got.size()) != m.bytes)
        return {.fault = text("rank ", m.rank, " sent ", got.size(), " bytes where ", m.bytes, " were due")};
      if (!got.empty()) std::memcpy(m.data, got.data(), got.size());
    }
    return {};
  }

  /// In the order of the ranks.
  Outcome all_reduce(const void* in, void* out, Index count, DType dtype, double seconds) override {
    const Index bytes = count * size_of(dtype);
    std::vector<std::byte> all(static_cast<std::size_t>(bytes * ranks_));
    std::vector<Message> messages;
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      messages.push_back({r, true, const_cast<void*>(in), bytes});  // only read
      messages.push_back({r, false, all.data() + r * bytes, bytes});
    }
    if (bytes) std::memcpy(all.data() + rank_ * bytes, in, static_cast<std::size_t>(bytes));
    Outcome done = exchange(messages, kSumTag, seconds);
    if (!done.ok()) return done;
    const auto add = [&]<class T>(const T* from, T* to) {
      for (Index i = 0; i < count; ++i) {
        T sum = from[i];
        for (int r = 1; r < ranks_; ++r) sum += from[r * count + i];
        to[i] = sum;
      }
    };
    if (dtype == DType::f64)
      add(reinterpret_cast<const double*>(all.data()), static_cast<double*>(out));
    else
      add(reinterpret_cast<const float*>(all.data()), static_cast<float*>(out));
    return {};
  }

 private:
  static constexpr int kSumTag = -1;
  std::shared_ptr<Post> post_;
  int rank_, ranks_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& work, const EngineOptions& options) {
  require(ranks >= 1 && ranks <= 64, ErrorKind::bad_argument, "run_ranks", "got ", ranks,
          " ranks; give 1 to 64");
  auto post = std::make_shared<Post>();
  post->left.assign(static_cast<std::size_t>(ranks), false);
  struct Failure {
    std::exception_ptr error = {};
    bool by_another = false;
  };
  std::vector<Failure> failed(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Failure& mine = failed[static_cast<std::size_t>(r)];
      try {
        Communicator team = Communicator::over(std::make_unique<ThreadsEngine>(post, r, ranks), options);
        work(team);
      } catch (const RankError&) {
        mine = {std::current_exception(), true};
      } catch (...) {
        mine = {std::current_exception(), false};
      }
    });
  for (std::thread& t : threads) t.join();
  for (const bool another : {false, true})
    for (const Failure& f : failed)
      if (f.error && f.by_another == another) std::rethrow_exception(f.error);
}

}  // namespace headwise
