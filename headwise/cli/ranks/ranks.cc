#include "headwise/cli/ranks/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "headwise/cli/args/args.h"
#include "headwise/cli/ranks/held_signals.h"

namespace headwise::cli {
namespace {

/// Ends the process unless it is told in time that all ranks have come: MPI's own start waits without end,
/// and nothing calls it off.
class StartWatch {
 public:
  explicit StartWatch(double seconds)
      : seconds_(seconds), thread_([this] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (!come_.wait_for(lock, std::chrono::duration<double>(seconds_), [this] { return done_; }))
            leave();
        }) {}
  ~StartWatch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    come_.notify_one();
    thread_.join();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  [[noreturn]] void leave() const {
    fmt::print(
        stderr,
        "headwise: {}ranks: not all ranks have come to the start for {} s; look which stand, then start "
        "all ranks again\n",
        rank_words(), seconds_);
    std::fflush(stderr);
    std::_Exit(kNoRank);
  }

  const double seconds_;
  std::mutex mutex_;
  std::condition_variable come_;
  bool done_ = false;
  std::thread thread_;
};

double start_seconds() {
  constexpr const char* kVariable = "HEADWISE_START_SECONDS";
  const char* word = std::getenv(kVariable);
  if (word == nullptr) return EngineOptions{}.start_seconds;
  char* end = nullptr;
  const double value = std::strtod(word, &end);
  require(end != word && *end == '\0' && value > 0, ErrorKind::bad_argument, "ranks", kVariable, " is \"",
          word, "\"; give seconds above 0");
  return std::min(value, 1e9);  // clocks count nanoseconds
}

Communicator started() {
  EngineOptions options;
  options.start_seconds = start_seconds();
  // Without a launcher there is nobody to wait for.
  if (launched_engine().empty()) return Communicator::start(options);
  const HeldSignals held;
  const StartWatch watch(options.start_seconds);
  return Communicator::start(options);
}

}  // namespace

std::string rank_words() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr || std::string_view(rank) == "0" ? "" : fmt::format("rank {}: ", rank);
}

void add_tensor_option(CLI::App& word, RankRequest& request) {
  word.add_option("--tensor", request.tensor,
                  "Ranks that heads are cut over: mpirun -n 2 headwise ... --tensor 2")
      ->check(size_check(1, 64));
}

void add_context_option(CLI::App& word, RankRequest& request) {
  word.add_option("--context", request.context,
                  "Ranks that the tokens of a batch are cut over: mpirun -n 2 headwise ... --context 2")
      ->check(size_check(1, 64));
}

void add_order_option(CLI::App& word, RankRequest& request) {
  word.add_option("--order", request.order,
                  "Of sums over heads: one_rank (the default, the same bits as one process), tree or engine");
}

void add_data_option(CLI::App& word, RankRequest& request) {
  word.add_option("--data", request.data,
                  "Ranks that share the texts of a step, in order tree: mpirun -n 2 headwise ... --data 2; "
                  "1, 2, 4 and 8 "
                  "give the same model")
      ->check(size_check(1, 64));
}

Ranks::Ranks(std::string_view word, const RankRequest& request, Order otherwise)
    : word_(word), request_(request), world_(started()) {
  const Index wanted = max_of(1, request.tensor) * max_of(1, request.context) * max_of(1, request.data);
  require(world_.ranks() == wanted, ErrorKind::bad_argument, word_, world_.ranks(),
          world_.ranks() == 1 ? " rank was started" : " ranks were started", " and the options ask for ",
          wanted, "; start as many: mpirun -n ", wanted, " headwise ", word_, " ...");
  teams_.order = request.order.empty() ? otherwise : order_of(request.order);
  const int tensor = std::max(1, request.tensor), context = std::max(1, request.context);
  const int size = tensor * context, rank = world_.rank();
  tensor_ = world_.part(rank / tensor * tensor, tensor);
  context_ = world_.part(rank / size * size + rank % tensor, context, tensor);
  data_ = world_.part(rank % size, world_.ranks() / size, size);
  if (request.data > 0) teams_.data = &data_;
  if (request.context > 0) teams_.context = &context_;
  if (request.tensor > 0 || !request.order.empty())
    teams_.tensor = &tensor_;
  else
    teams_.order = Order::one_rank;  // nothing is summed over heads
  if (leads()) return;
  require(std::freopen("/dev/null", "w", stdout) != nullptr, ErrorKind::device, word_,
          "cannot open /dev/null, where ranks above 0 print; look at the file system");
}

void Ranks::agree(std::vector<AgreeField> fields) const {
  fields.insert(fields.begin(), {{"tensor", text(request_.tensor)},
                                 {"context", text(request_.context)},
                                 {"data", text(request_.data)},
                                 {"order", std::string(name_of(teams_.order))}});
  world_.agree(word_, fields);
}

}  // namespace headwise::cli
