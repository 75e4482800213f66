#include "headwise/kernels/cpu/lanes/neon.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/round.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {

const StoredCore kStoredNeon{"neon", stored::Tiles<Lanes, 4, 16, 4>::multiply,
                             stored::Dots<stored::PlainDot, 4>::dots, stored::round_group};

}  // namespace headwise::cpu
