#include "headwise/kernels/cpu/f64/core.h"

namespace headwise::cpu {

const F64Core kF64Plain = F64Lanes<2, 1>::table();

}  // namespace headwise::cpu
