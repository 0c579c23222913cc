// The time of a forward of generation, pipeline stage by pipeline stage.
#pragma once
#include <map>
#include <vector>

#include "shardwise/plan/block_kind.h"
#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/inference_plan.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/stored_weights.h"

namespace shardwise::plan {

/// The most tokens of one forward of prompts (infer::Batching).
inline constexpr int64_t kPromptRows = 512;

/// Returns the blocks of each pipeline stage.
base::Split stages_of(const config::Config& config, int64_t pp);

/// A forward of tokens of several texts: of their prompts, or one new token of each.
struct GenerationForward {
  int64_t rows = 1;         // tokens
  int64_t texts = 1;        // whose prompts are divided into `forwards` of these
  double forwards = 1;      // of `rows` tokens each
  int64_t cached_keys = 0;  // of each of `rows` texts, if it is a new token of each
};

/// The time of forwards of one replica. Task, weights and machine must live as long.
class InferenceTime {
 public:
  /// Errors: c10::ValueError if a group of ranks is on several nodes and the machine has no network.
  InferenceTime(const InferenceTask& task, const InferenceDegrees& degrees, const StoredWeights& weights,
                const Machine& machine);

  /// Returns the seconds of each stage: its blocks; on the first one the embedding; and the message to the
  /// next one. Final norm and head are left out.
  std::vector<ForwardTime> stages(const GenerationForward& forward) const;
  /// Returns the seconds of final norm and head for a row of each of `texts` texts, after `forward`; the loss
  /// is not computed.
  double head(int64_t texts, const GenerationForward& forward) const;
  /// Returns the seconds of the message that brings the ids of `texts` chosen tokens to the first stage.
  double ids(int64_t texts) const;

 private:
  /// The seconds of a block's operations in order, and of its exchanges with other replicas' ranks.
  struct BlockTime {
    std::vector<double> operations;
    double exchanges = 0;
  };

  Workload workload(const config::Config& config, int64_t sequence_length, int64_t batch_size) const;
  // `from_memory`: the part of what a forward reads that no cache holds (memory_share).
  BlockTime block(int64_t layer, const GenerationForward& forward, double from_memory) const;
  void add_experts(BlockTime& block, const GenerationForward& forward, double from_memory) const;
  double attention(int64_t layer, const GenerationForward& forward, double from_memory) const;
  double prompt_attention(int64_t layer) const;
  double projections_again(int64_t layer) const;
  int64_t keys_of(int64_t layer, const GenerationForward& forward) const;
  int64_t cached_bytes(int64_t layer, const GenerationForward& forward) const;
  double memory_share(const GenerationForward& forward) const;
  double cached_attention(int64_t layer, const GenerationForward& forward, double from_memory) const;
  /// How much of a weight a forward reads, and how much of that from memory.
  struct ReadShares {
    double of_weight = 1, memory = 1;
  };
  double product(const Operation& operation, const StoredWeight& weight, const ReadShares& read) const;
  double elementwise(const Operation& operation) const;
  double message(int64_t first_stage, int64_t last_stage, int64_t bytes) const;

  const InferenceTask& task_;
  const StoredWeights& weights_;
  const Machine& machine_;
  InferenceDegrees degrees_;
  ExpertRanks expert_ranks_;
  base::Split stages_;
  config::Config dense_;    // without quantization: operations count elements
  config::Config outside_;  // of embedding, head and collectives, which do not depend on experts
  RankShard shard_;         // rank 0's heads
  OperationTime time_;
  CollectiveTime collectives_, exchanges_;
};

}  // namespace shardwise::plan
