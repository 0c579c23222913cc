// Where a rank's memory goes while it continues texts: weights, caches, and what a forward holds at its
// fullest.
#pragma once
#include <optional>

#include "shardwise/plan/instants.h"

namespace shardwise::plan {

/// The largest batch of a run.
struct Generation {
  model::Config config;
  int tp = 1;
  int64_t element_bytes = 4;  // of weights, activations and caches: 4 or 2
  int64_t rows = 1;           // tokens of one forward, of all its texts
  int64_t texts = 1;
  int64_t cached_tokens = 1;  // that all texts' caches have room for
  int64_t longest_cache = 1;  // the room of the largest
  /// The rank's, where they are not element_bytes for each parameter: quantized ones.
  std::optional<int64_t> weight_bytes = {};
};

struct GenerationPeak {
  Entries held;     // from the first forward to the last
  Instant fullest;  // of a forward

  int64_t own_bytes() const { return total(held) + total(fullest.entries, Pool::own); }
};

/// Of ordinary memory; sums over the ranks lie in memory that peers can read. What a vendor's product makes
/// for itself is left out; every rank has one thread. Errors: c10::ValueError for sizes that are not
/// positive.
GenerationPeak generation_peak(const Generation& generation, int rank);

}  // namespace shardwise::plan
