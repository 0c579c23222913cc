// A small model of the same architecture that trains in milliseconds, for the training smoke test.
#pragma once
#include "shardwise/config/config.h"

namespace shardwise::doctor {

/// Sequence length of the small model: longer than its window, and not a multiple of a usual number of ranks.
inline constexpr int64_t kSmallSeqLen = 19;

/// Returns `config` with two layers, small odd sizes and the vocabulary of bytes. What defines the
/// architecture stays: heads, biases, norms, activation, positions, a tied head, and sliding windows, which
/// are shortened. A large standard deviation of the weights makes losses depend clearly on the tokens.
model::Config shrink(const model::Config& config);

}  // namespace shardwise::doctor
