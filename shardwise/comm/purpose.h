// What ranks compare beside a collective's kind and size where several alike may be under way at once.
#pragma once
#include "shardwise/base/hash.h"

namespace shardwise::comm {

/// Of part `part` of the group's begun sum `number`: no other part's, nor 0, an ordinary collective's.
constexpr uint64_t purpose_of(uint64_t number, uint64_t part) {
  return base::mix(base::mix(base::kHashBegin, number), part);
}

}  // namespace shardwise::comm
