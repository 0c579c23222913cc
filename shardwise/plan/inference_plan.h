// Memory and time of generation on a cluster: replicas of a model, each split by tensor parallelism and
// pipeline stages; experts are split over ranks of a stage, also of several replicas.
//
// A replica processes the prompts of all its texts, 512 tokens at a time, then a token of each text at once.
// Ranks are numbered with tp innermost, then the replicas that share experts, then the stages, then all other
// replicas, so that a replica is on as few nodes as possible.
#pragma once
#include <optional>

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

/// How generation is split. The product of tp, pp and replicas need not be the task's ranks.
struct InferenceDegrees {
  int64_t tp = 1;        // tensor parallelism
  int64_t replicas = 1;  // of the model
  int64_t pp = 1;        // pipeline stages of a replica
  int64_t ep = 1;        // ranks that share the experts of a block (routed_experts.h)
  bool operator==(const InferenceDegrees&) const = default;
};

/// Bytes of a rank at the peak.
struct InferenceMemory {
  int64_t weights = 0;  // as they are stored, quantized or not
  int64_t cache = 0;    // keys and values, or latents, of all texts of the replica at their full length
  int64_t buffers = 0;  // what else is live at the peak of a forward
  /// Returns the sum.
  int64_t total() const { return weights + cache + buffers; }
};

/// Seconds of one forward, or of all forwards of a prompt.
struct ForwardTime {
  double compute = 0;          // products, attention and elementwise operations
  double tensor_parallel = 0;  // collectives
  double expert_parallel = 0;  // all_to_alls, if several replicas share experts
  double pipeline = 0;         // messages between stages
  /// Returns the sum.
  double total() const { return compute + tensor_parallel + expert_parallel + pipeline; }
  /// Adds the parts of another time.
  ForwardTime& operator+=(const ForwardTime& more);
};

/// A way to generate, with what it takes.
struct InferencePlan {
  InferenceDegrees degrees;  // how generation is split
  InferenceMemory memory;    // of a rank of the stage that needs the most
  ForwardTime prompts;       // of all texts of a replica: the time to the last first token
  ForwardTime token;         // one of each text, in the middle of generation: all at once, stage by stage
  int64_t peak_stage = 0;    // the pipeline stage that needs the most memory
  /// Seconds in which each text gets a token if its replica's texts are pp micro-batches that fill the
  /// pipeline; no value with one stage, or with fewer texts than stages.
  std::optional<double> pipelined_token = {};

  /// Returns the seconds of a token of each text, in whichever of the two ways is faster.
  double seconds_per_token() const;
  /// Returns the seconds until all texts are generated.
  double seconds(int64_t new_tokens) const {
    return prompts.total() + static_cast<double>(new_tokens - 1) * seconds_per_token();
  }
};

/// Returns the bytes of rank 0's weights of a replica of one stage (stored_weights.h).
int64_t weight_bytes(const config::Config& config, int64_t tp, int64_t element_bytes);

/// Returns memory and time of a split. Errors: c10::ValueError if a size is not positive, `tp` exceeds the
/// number of query heads, `pp` the number of blocks or `ep` that of experts, or `ep` neither divides tp nor
/// is tp times a divisor of the replicas.
InferencePlan evaluate(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine);

}  // namespace shardwise::plan
