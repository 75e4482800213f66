// cuda/ragged: a ragged batch whose sequences take the kernel they take alone, cuda/decode or cuda/hopper, so
// that each has the bits it has alone.
#include <cstdio>

#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::hopper {
namespace {

/// One of its sequences with one query: none is more cuda/decode's.
AttentionProblem one_query(AttentionProblem p) {
  p.batch = 1, p.q_tokens = 1, p.ragged = false;
  return p;
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  if (!p.ragged || p.batch < 2) return void(std::snprintf(why, sizeof why, "no ragged batch of sequences"));
  char decode[kSentenceBytes];
  decode::kAttend.refuse(one_query(p), decode);
  if (decode[0])
    return void(std::snprintf(why, sizeof why, "no sequence would take cuda/decode alone: %.200s", decode));
  forward::kAttend.refuse(p, why);
}

/// Of the sequences that take one of the two kernels.
struct Longest {
  Index count = 0, q_tokens = 0, kv_tokens = 0;
  void meet(const SequenceLocation& s) {
    ++count, q_tokens = max_of(q_tokens, s.q_tokens), kv_tokens = max_of(kv_tokens, s.kv_tokens);
  }
};

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  Longest few, many;
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation s = place_of(p, a, b);
    (decode_suits(s.q_tokens, s.kv_tokens, p.heads.k.group) ? few : many).meet(s);
  }
  const auto of = [&](const Longest& longest) {
    AttentionProblem own = p;
    own.q_tokens = longest.q_tokens, own.kv_tokens = max_of(longest.kv_tokens, 1);  // none: still 0 to write
    return own;
  };
  Status status;
  if (many.count) status = forward::run_sequences(of(many), a, device, stream, Sequences::tiles);
  if (status.ok() && few.count) status = decode::run_sequences(of(few), a, device, stream, Sequences::decode);
  return status;
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  char decode[kSentenceBytes], tiles[kSentenceBytes];
  decode::kAttend.numerics(p, decode), forward::kAttend.numerics(p, tiles);
  std::snprintf(words, sizeof words, "cuda/ragged, each sequence as alone: %.100s; %.100s", decode, tiles);
}

}  // namespace

const Kernel kRagged = {"cuda/ragged", refuse, run, numerics};

}  // namespace headwise::cuda::hopper
