#include "headwise/kernels/cpu/f64/core.h"

namespace headwise::cpu {

const F64Core kF64Avx512 = F64Lanes<8, 4>::table();

}  // namespace headwise::cpu
