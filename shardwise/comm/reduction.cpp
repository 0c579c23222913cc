#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

const char* name(Reduce reduce) {
  static constexpr const char* names[kReductions] = {"sum",     "product", "min",    "max",
                                                     "average", "bit_and", "bit_or", "bit_xor"};
  return names[static_cast<int>(reduce)];
}

}  // namespace shardwise::comm
