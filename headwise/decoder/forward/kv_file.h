// kv_file: the keys and values of one text in a file, so that it goes on later as if it had never stopped.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/decoder/forward/decoder.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Writes tokens, keys and values of a sequence. The file takes its name when it is whole: a stop at any
/// moment leaves the old one or the new one. It names the model and its numerics class.
void save_kv(const KvCache& cache, SequenceId id, const Decoder& model, const std::string& path);
/// A new sequence with what was saved; its bytes are those that were written. Refused: a file of another
/// model, class, shape, dtype or page size, and one with a changed byte. -1: the cache has too few pages now.
SequenceId load_kv(KvCache& cache, const Decoder& model, const std::string& path,
                   const std::string& tenant = {});

}  // namespace headwise
#pragma GCC visibility pop
