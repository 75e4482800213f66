#include "headwise/kernels/cpu/f64/core.h"

namespace headwise::cpu {

const F64Core kF64Avx2 = F64Lanes<4, 2>::table();

}  // namespace headwise::cpu
