// Attention of one query per sequence, each over keys and values of its own. Internal to kernels/.
#pragma once
#include <vector>

#include "shardwise/kernels/attention.h"

namespace shardwise::kernels {

/// The keys or the values of one sequence, [k, keys, d].
struct SequenceHeads {
  const void* data;
  int64_t head, row;              // strides of the first two dims, in elements
  const float* scales = nullptr;  // [k, keys] of int8, the factors of its rows; null for elements of q's type
  int64_t scale_head = 0;         // stride of their first dim
};

struct KeysAndValues {
  SequenceHeads keys, values;
  int64_t count;  // keys
};

/// Computes `result`, whose tensors have one query per sequence. Keys are attended to in blocks of 1024,
/// whose results are added up in order, so that bits do not depend on the number of threads. Shapes: `q` [n,
/// a, 1, d] → `result.out` n·a·d elements, `result.lse` [n, a, 1]. Cost: parallel over the n sequences, their
/// KV heads and blocks of keys; (d + 2)·n·a accumulators for each block.
void attend_single(const AttentionResult& result, const at::Tensor& q,
                   const std::vector<KeysAndValues>& sequences, const AttentionOptions& options);

}  // namespace shardwise::kernels
