#include "headwise/kernels/cpu/lanes/neon.h"

#include "headwise/kernels/cpu/stored/dots.h"
#include "headwise/kernels/cpu/stored/tiles.h"

namespace headwise::cpu {

const StoredCore kStoredNeon{"neon", StoredTiles<Lanes, 4, 16, 4>::multiply, StoredDots<PlainDot, 4>::dots};

}  // namespace headwise::cpu
