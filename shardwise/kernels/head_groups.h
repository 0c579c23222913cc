// The query heads that share a KV head. Internal to kernels/.
#pragma once
#include <vector>

#include "shardwise/kernels/attention.h"

namespace shardwise::kernels {

/// The query heads [begin, end), which share one KV head.
struct HeadGroup {
  int64_t begin, end, kv;
};

/// Returns the groups of `kv_of_head`, ascending.
std::vector<HeadGroup> groups_of(const std::vector<int64_t>& kv_of_head);

/// Checks the shapes, the dtype and the options' KV heads and window. Errors: c10::ValueError.
void check_heads(const char* op, const Qkv& qkv, const AttentionOptions& options);

}  // namespace shardwise::kernels
