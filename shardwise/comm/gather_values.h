// Small values of every rank, such as a struct of figures, on all of them.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

namespace detail {
/// Into `all`, of `bytes` · ranks.
void gather_bytes(const void* own, size_t bytes, void* all, const Group& group);
}  // namespace detail

/// Collective: `own` of every rank, as long on each, by rank one behind the other. Cost: one all_gather of
/// its bytes. Errors: the group's.
template <typename T>
std::vector<T> gather_values(const std::vector<T>& own, const Group& group) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(own.size() * static_cast<size_t>(group.size()));
  detail::gather_bytes(own.data(), own.size() * sizeof(T), all.data(), group);
  return all;
}

/// The same of one value.
template <typename T>
std::vector<T> gather_values(const T& own, const Group& group) {
  return gather_values(std::vector<T>{own}, group);
}

/// Collective: of all ranks' texts, which may differ in length, that of the lowest rank whose is not empty;
/// empty: all are. Cost: one all_gather of 8 bytes, and of the longest text if there is one; nothing in a
/// group of one. Errors: the group's.
std::string first_text(const std::string& own, const Group& group);

}  // namespace shardwise::comm
