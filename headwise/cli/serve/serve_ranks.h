// A model that several ranks serve: rank 0 listens and says what to run, the others follow.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "headwise/cli/ranks/ranks.h"
#include "headwise/decoder/decoder_host.h"

namespace headwise::cli {

/// Rank 0's side: one thing at a time goes to the others, and a beat every few seconds, so that they know it
/// lives and it knows they do. Its end ends them. Used from any thread.
class RankLeader {
 public:
  explicit RankLeader(const Communicator& world);
  RankLeader(const RankLeader&) = delete;
  RankLeader& operator=(const RankLeader&) = delete;
  ~RankLeader();

  using Answers = std::function<std::vector<std::string>(std::span<const std::string> texts)>;
  /// The others run the model on these texts too.
  std::vector<std::string> run(std::span<const std::string> texts, const Answers& answers);
  /// Called once, on the thread that finds a rank gone; from now on at once, if one is already.
  void when_lost(std::function<void()> call);
  /// Throws what was found of a rank that is gone.
  void check() const;

 private:
  template <class F>
  auto together(F&& f);
  void beat();

  const Communicator& world_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::exception_ptr lost_;
  std::function<void()> when_lost_;
  std::thread beats_;
};

/// The other ranks' side: until rank 0 ends it. An error that is no rank's is one that rank 0 met, too.
void follow_leader(const Communicator& world,
                   const std::function<void(std::span<const std::string> texts)>& work);

/// A turn of a language model as texts that a leader sends, and back.
std::vector<std::string> words_of(const DecoderTurn& turn);
DecoderTurn turn_of(std::span<const std::string> words);

}  // namespace headwise::cli
