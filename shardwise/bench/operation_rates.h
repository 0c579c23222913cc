// The operations of a training step at several sizes, to be timed on all ranks at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/plan/machine.h"

namespace shardwise::bench {

/// Calls of one size that are timed together.
struct SizedCalls {
  std::string name;                          // for progress: "fp32 products of 2048 x 2048 x 1024"
  std::vector<std::function<void()>> calls;  // timed one by one
  std::vector<double> work;                  // of each: FLOP or bytes
};

/// Forward, input gradient and weight gradient of a linear layer.
std::vector<std::function<SizedCalls()>> product_calls(at::ScalarType dtype);
/// Attention, forward and backward.
std::vector<std::function<SizedCalls()>> attention_calls(at::ScalarType dtype);
/// Attention of a token of each of several texts to its cache in bf16, in elements of keys and values.
/// `queries` heads share each key. Calls use equal caches of at least `bytes_in_turn` bytes in turn.
std::vector<std::function<SizedCalls()>> cached_attention_calls(int64_t queries, int64_t bytes_in_turn);
/// The elementwise kernels of a block, forward and backward.
std::vector<std::function<SizedCalls()>> elementwise_calls(at::ScalarType dtype);
/// The optimizer's two sweeps over parameters that no cache holds: the norm, and AdamW with zeroing.
SizedCalls update_calls();

}  // namespace shardwise::bench
