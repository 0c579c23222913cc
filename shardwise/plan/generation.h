// Memory of a rank during generation: weights, KV caches, and the peak of a forward.
#pragma once
#include <optional>

#include "shardwise/plan/snapshots.h"

namespace shardwise::plan {

/// The largest batch of a run.
struct Generation {
  config::Config config;        // of the model; with experts, they are in all its blocks
  int tp = 1;                   // number of ranks
  int64_t element_bytes = 4;    // of weights, activations and caches that are not int8: 4 or 2
  int64_t rows = 1;             // tokens of one forward, over all its sequences
  int64_t sequences = 1;        // in the batch
  int64_t sampled_rows = 1;     // tokens that one forward samples: one for each sequence and drafted token
  int64_t cached_tokens = 1;    // total capacity of all sequences' caches
  int64_t longest_cache = 1;    // capacity of the largest
  bool has_int8_cache = false;  // keys and values in int8, with a float per row
  /// Bytes of the rank's weights; without a value, which a model with experts needs, each parameter takes
  /// element_bytes.
  std::optional<int64_t> weight_bytes = {};
  bool gathers_logits = false;       // some token is sampled from all logits, which every rank then gathers
  bool wants_logprobs = false;       // of some token
  bool attends_by_tiles = false;     // AVX-512 BF16 or AMX computes attention of bf16
  bool multiplies_by_tiles = false;  // AMX multiplies packed bf16 weights
  int64_t ep = 1;                    // ranks that share the experts (routed_experts.h)
  int64_t blocks = 0;                // on the rank's pipeline stage; 0: all of the model's
  bool has_embedding = true;         // on the rank's pipeline stage
  bool has_head = true;              // final norm and head are on that stage; or it sends to the next one
};

/// Returns the bytes that a rank caches of a token in one block: keys and values of its KV heads, or the
/// latents, which every rank needs for its heads. In int8, each of these rows has a float.
int64_t cached_bytes_per_block(const config::Config& config, int64_t kv_heads, int64_t element_bytes,
                               bool has_int8_cache);

/// The largest memory of a rank in generation, tensor by tensor.
struct GenerationPeak {
  Allocations persistent;         // live in every forward
  MemorySnapshot private_memory;  // the peak of private memory in a forward
  MemorySnapshot symmetric_heap;  // the peak of the symmetric heap in a forward

  /// Returns the bytes of private memory at the peak.
  int64_t private_bytes() const {
    return total(persistent) + total(private_memory.allocations, Pool::private_memory);
  }
  /// Returns the bytes of the symmetric heap at the peak.
  int64_t symmetric_heap_bytes() const { return total(symmetric_heap.allocations, Pool::symmetric_heap); }
};

/// Returns the peak of one rank; several ranks share memory. Internal buffers of vendor GEMMs and messages of
/// a few KB are left out; every rank has one thread. Errors: c10::ValueError if a size is not positive.
GenerationPeak generation_peak(const Generation& generation, int rank);

}  // namespace shardwise::plan
