// Memory and time of generation on a cluster: replicas of a model, each split by tensor parallelism.
//
// A replica processes the prompts of all its texts, 512 tokens at a time, then a token of each text at once.
#pragma once
#include "shardwise/plan/generation.h"
#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// What is generated, on how many ranks.
struct InferenceTask {
  config::Config config;        // of the model; its quantization is that of the weights in memory
  int64_t ranks = 1;            // of all replicas together
  int64_t prompt_tokens = 0;    // of a text
  int64_t new_tokens = 0;       // of a text
  int64_t texts = 1;            // over all replicas, generated at once
  int64_t element_bytes = 2;    // of weights that are not quantized, activations and caches: 4 or 2
  bool has_int8_cache = false;  // keys and values in int8
};

/// How generation is split. Their product need not be the task's ranks.
struct InferenceDegrees {
  int64_t tp = 1;        // tensor parallelism
  int64_t replicas = 1;  // of the model
  bool operator==(const InferenceDegrees&) const = default;
};

/// Bytes of a rank at the peak.
struct InferenceMemory {
  int64_t weights = 0;
  int64_t cache = 0;    // keys and values of all texts of the replica at their full length
  int64_t buffers = 0;  // what else is live at the peak of a forward
  int64_t total() const { return weights + cache + buffers; }
};

/// Seconds of one forward, or of all forwards of a prompt.
struct ForwardTime {
  double compute = 0;          // products, attention and elementwise operations
  double tensor_parallel = 0;  // collectives
  double total() const { return compute + tensor_parallel; }
};

/// A way to generate, with what it takes.
struct InferencePlan {
  InferenceDegrees degrees;
  InferenceMemory memory;
  ForwardTime prompts;  // of all texts of a replica: the time to the last first token
  ForwardTime token;    // one of each text, in the middle of generation

  /// Returns the seconds until all texts are generated.
  double seconds(int64_t new_tokens) const {
    return prompts.total() + static_cast<double>(new_tokens - 1) * token.total();
  }
};

/// Returns the bytes of rank 0's weights. A quantized weight has a scale of 16 bits for each group of a row,
/// and zero points of its own bits if it is asymmetric.
int64_t weight_bytes(const config::Config& config, int64_t tp, int64_t element_bytes);

/// Returns memory and time of a split. Errors: c10::ValueError if a size is not positive, or `tp` exceeds the
/// number of query heads.
InferencePlan evaluate(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine);

}  // namespace shardwise::plan
