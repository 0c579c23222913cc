// An all_gather of small values, such as a struct of statistics.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

namespace detail {
/// Gathers `bytes` bytes of every rank into `all`.
void gather_bytes(const void* local, size_t bytes, void* all, const Group& group);
}  // namespace detail

/// Returns the concatenation of every rank's `local`, by rank; its length is equal on all ranks. Collective.
/// Cost: one all_gather of its bytes. Errors: the group's.
template <typename T>
std::vector<T> gather_values(const std::vector<T>& local, const Group& group) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(local.size() * static_cast<size_t>(group.size()));
  detail::gather_bytes(local.data(), local.size() * sizeof(T), all.data(), group);
  return all;
}

/// Returns every rank's `local`, by rank. Collective.
template <typename T>
std::vector<T> gather_values(const T& local, const Group& group) {
  return gather_values(std::vector<T>{local}, group);
}

/// Returns every rank's text, by rank. Collective. Cost: one all_gather of 8 bytes, and one of the longest
/// text unless all are empty; nothing in a group of one. Errors: the group's.
std::vector<std::string> gather_texts(const std::string& local, const Group& group);

/// Returns the text of the lowest rank whose text is not empty, or an empty string if all are empty.
/// Collective. Cost: one all_gather of 8 bytes, and one of the longest text unless all are empty; nothing in
/// a group of one. Errors: the group's.
std::string first_text(const std::string& local, const Group& group);

}  // namespace shardwise::comm
