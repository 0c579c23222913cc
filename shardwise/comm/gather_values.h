// One small value of every rank, such as a struct of figures, on all of them.
#pragma once
#include <type_traits>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

/// `own` of every rank, by rank, into `all`: `bytes` each.
void gather_bytes(const void* own, size_t bytes, void* all, const Group& group);

/// Collective: `own` of every rank, by rank. Cost: one all_gather of sizeof(T) bytes.
template <typename T>
std::vector<T> gather_values(const T& own, const Group& group) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(group.size()));
  gather_bytes(&own, sizeof(T), all.data(), group);
  return all;
}

}  // namespace shardwise::comm
