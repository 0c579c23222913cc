// gtest printers for plan's types.
#pragma once
#include <ostream>

#include "shardwise/plan/communication.h"

namespace shardwise::plan {

inline std::ostream& operator<<(std::ostream& out, const Traffic& traffic) {
  return out << traffic.calls << " calls of " << traffic.bytes << " bytes";
}

inline std::ostream& operator<<(std::ostream& out, const Collectives& collectives) {
  return out << "all_reduce " << collectives.all_reduce << ", all_gather " << collectives.all_gather
             << ", reduce_scatter " << collectives.reduce_scatter << ", broadcast " << collectives.broadcast;
}

}  // namespace shardwise::plan
