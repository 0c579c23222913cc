// How decode attention on a GPU splits a sequence's keys among blocks (split-KV).
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace shardwise::kernels::cuda {

/// Split i has the keys [i · rows, (i + 1) · rows). A sequence attends to at most `count` splits in turn.
struct KeySplits {
  int64_t rows;  // at least 1; the bits of a sequence's attention depend on it
  int count;     // at least 1
};

/// Returns the splits for sequences of at most `most_keys` keys, each with its new ones. Their rows depend
/// only on `most_keys`, so that a sequence has the same bits in each batch of one capacity: 128, which keep
/// an H200 busy with one sequence of 2,000 keys and 8 KV heads, or as many as make 128 splits. `window`: of
/// AttentionOptions; 0: none.
inline KeySplits key_splits(int64_t most_keys, int64_t window) {
  constexpr int64_t kLeastRows = 128, kMostSplits = 128;
  const auto up = [](int64_t of, int64_t by) { return (of + by - 1) / by; };
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, up(most_keys, kMostSplits)));
  const int64_t rows = std::max(kLeastRows, static_cast<int64_t>(std::bit_ceil(wanted)));
  const int64_t all = std::max<int64_t>(1, up(most_keys, rows));
  const int64_t of_window = window == 0 ? all : up(window - 1, rows) + 1;  // wherever the window begins
  return {rows, static_cast<int>(std::min(all, of_window))};
}

}  // namespace shardwise::kernels::cuda
