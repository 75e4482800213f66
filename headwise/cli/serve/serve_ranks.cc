#include "headwise/cli/serve/serve_ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

namespace headwise::cli {
namespace {

/// What rank 0 says before anything travels.
struct Word {
  enum Kind : Index { beat, texts, end };
  Index kind = beat, bytes = 0;
};

/// Each text behind its length.
std::string packed(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& one : texts) {
    const auto size = static_cast<Index>(one.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof size);
    all += one;
  }
  return all;
}

std::vector<std::string> unpacked(std::string_view all) {
  std::vector<std::string> texts;
  while (!all.empty()) {
    Index size = 0;
    require(all.size() >= sizeof size, ErrorKind::device, "serve", "rank 0 sent texts that end in a length");
    std::memcpy(&size, all.data(), sizeof size);
    all.remove_prefix(sizeof size);
    require(size >= 0 && static_cast<Index>(all.size()) >= size, ErrorKind::device, "serve",
            "rank 0 sent a text of ", size, " bytes and ", all.size(), " were there");
    texts.emplace_back(all.substr(0, static_cast<std::size_t>(size)));
    all.remove_prefix(static_cast<std::size_t>(size));
  }
  return texts;
}

}  // namespace

RankLeader::RankLeader(const Communicator& world) : world_(world), beats_([this] { beat(); }) {}

RankLeader::~RankLeader() {
  {
    const std::lock_guard held(lock_);
    ends_ = true;
  }
  changed_.notify_all();
  beats_.join();
  if (lost_) return;
  Word word{.kind = Word::end};
  try {
    world_.share(&word, sizeof word, "the end of serving");
  } catch (const Error&) {
    // A rank that is gone has ended already.
  }
}

/// Ranks meet inside f; what is found of a lost one is kept and told once.
template <class F>
auto RankLeader::together(F&& f) {
  const std::lock_guard held(lock_);
  if (lost_) std::rethrow_exception(lost_);
  try {
    return f();
  } catch (const RankError&) {
    lost_ = std::current_exception();
    if (when_lost_) when_lost_();
    throw;
  }
}

std::vector<std::string> RankLeader::run(std::span<const std::string> texts, const Answers& answers) {
  return together([&] {
    std::string all = packed(texts);
    Word word{.kind = Word::texts, .bytes = static_cast<Index>(all.size())};
    world_.share(&word, sizeof word, "what to serve");
    world_.share(all.data(), word.bytes, "texts to serve");
    return answers(texts);
  });
}

void RankLeader::beat() {
  // Well inside the deadline of the others.
  const auto pause = std::chrono::duration<double>(std::min(5.0, world_.seconds() / 4));
  std::unique_lock held(lock_);
  while (!ends_ && !lost_) {
    if (changed_.wait_for(held, pause, [&] { return ends_; })) return;
    held.unlock();
    try {
      together([&] {
        Word word;
        world_.share(&word, sizeof word, "a beat");
      });
    } catch (const Error&) {
      return;  // kept: check() throws it
    }
    held.lock();
  }
}

void RankLeader::when_lost(std::function<void()> call) {
  const std::lock_guard held(lock_);
  when_lost_ = std::move(call);
  if (lost_ && when_lost_) when_lost_();
}

void RankLeader::check() const {
  const std::lock_guard held(lock_);
  if (lost_) std::rethrow_exception(lost_);
}

void follow_leader(const Communicator& world,
                   const std::function<void(std::span<const std::string> texts)>& work) {
  // mpirun sends them to every rank; rank 0 answers what has come and then says when to end.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  for (;;) {
    Word word;
    world.share(&word, sizeof word, "what to serve");
    if (word.kind == Word::end) return;
    if (word.kind == Word::beat) continue;
    std::string all(static_cast<std::size_t>(word.bytes), '\0');
    world.share(all.data(), word.bytes, "texts to serve");
    try {
      work(unpacked(all));
    } catch (const RankError&) {
      throw;
    } catch (const Error&) {
      // Rank 0 met the same and answers it.
    }
  }
}

}  // namespace headwise::cli
