// Attention of one query per sequence, each over keys and values of its own. Internal to kernels/.
#pragma once
#include <vector>

#include "shardwise/kernels/attention.h"

namespace shardwise::kernels {

/// The keys or the values of one sequence, [k, keys, d].
struct SequenceHeads {
  const void* data;
  int64_t head, row;  // strides of the first two dims, in elements
};

struct KeysAndValues {
  SequenceHeads keys, values;
  int64_t count;  // keys
};

/// Computes `result`, whose tensors have one query per sequence. Shapes: `q` [n, a, 1, d] → `result.out`
/// n·a·d elements, `result.lse` [n, a, 1]. Cost: parallel over the n sequences and their KV heads.
void attend_single(const AttentionResult& result, const at::Tensor& q,
                   const std::vector<KeysAndValues>& sequences, const AttentionOptions& options);

}  // namespace shardwise::kernels
