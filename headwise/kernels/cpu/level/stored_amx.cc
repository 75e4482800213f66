#include "headwise/kernels/cpu/lanes/avx512.h"

#include "headwise/kernels/cpu/stored/amx_parts.h"

namespace headwise::cpu {

const StoredParts kStoredAmx{stored::AmxParts::split, stored::AmxParts::multiply};

}  // namespace headwise::cpu
