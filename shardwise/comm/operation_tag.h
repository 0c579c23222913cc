// The tag that ranks compare, besides an operation's kind and size, when similar operations are in flight.
#pragma once
#include "shardwise/base/hash.h"

namespace shardwise::comm {

/// Returns the tag of part `part` of the group's asynchronous operation `number`. It differs from the tags of
/// all other parts and from 0, the tag of a synchronous collective.
constexpr uint64_t operation_tag(uint64_t number, uint64_t part) {
  return base::mix(base::mix(base::kHashBegin, number), part);
}

}  // namespace shardwise::comm
