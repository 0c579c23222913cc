// Memory and time of one training step on a cluster: tensor, context, expert, pipeline and data parallelism
// together.
//
// Ranks are numbered with tp innermost, then cp, dp and pp, so that tensor parallelism stays in a node as
// long as it fits. Experts are split over ep consecutive ranks of tp·cp·dp. Tensor parallelism's
// communication is hidden by products of the same layer (exposed_communication.h), data parallelism's by the
// passes of one micro-batch. Ranks of context parallelism hold the same
// weights, and so are among those that sum gradients and split model states.
#pragma once
#include <tuple>

#include "shardwise/plan/machine.h"
#include "shardwise/plan/micro_batch_costs.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Bytes of a parameter's model states. Conventions differ: 2 + 2 + 12 in ZeRO's paper, 2 + 4 + 12 where
/// 16-bit gradients are summed in fp32, as here and in Megatron, and 4 + 4 + 8 in fp32.
struct StateBytes {
  int64_t weight;     // that the forward reads
  int64_t gradient;   // that micro-batches are summed in
  int64_t optimizer;  // AdamW's moments, and a master weight beside a 16-bit one
  /// Returns the sum.
  int64_t total() const { return weight + gradient + optimizer; }
};

/// What is trained, on how many ranks.
struct TrainingTask {
  config::Config config;             // of the model
  int64_t ranks = 1;                 // of all axes together
  int64_t sequence_length = 0;       // tokens
  int64_t batch_size = 0;            // sequences of a step, over all ranks
  int64_t element_bytes = 2;         // of weights and activations: 4 or 2
  int64_t gradient_bytes = 4;        // of main gradients: 4, or 2 as in ZeRO's paper
  bool overlaps_collectives = true;  // of tensor parallelism with products
  bool hides_gradient_sums = true;   // of data parallelism beside the passes of a micro-batch
  bool shares_weights = false;   // replicas have one copy, of which each counts its part; nothing gathers it
  FrozenParameters frozen = {};  // of the config
  /// Bytes per element of master weights and AdamW's moments.
  int64_t accumulator_bytes() const { return element_bytes < 4 ? 4 : element_bytes; }
  /// Returns what a parameter takes.
  StateBytes state_bytes() const;
};

/// How the step is split.
struct Degrees {
  int64_t tp = 1;                         // tensor parallelism
  int64_t cp = 1;                         // context parallelism
  int64_t pp = 1;                         // pipeline stages
  int64_t dp = 1;                         // data parallelism
  int64_t ep = 1;                         // expert parallelism, over ranks of the others
  bool has_sequence_parallel = true;      // TP+SP; without effect at tp 1
  bool splits_batch = false;              // the split-batch schedule of TP (nn/split_batch.h)
  ZeroStage zero = ZeroStage::none;       // what data-parallel ranks split
  int64_t micro_batch_size = 1;           // sequences
  int64_t chunks = 1;                     // of a stage's blocks; more than one: the interleaved schedule
  Recompute recompute = Recompute::none;  // what backward recomputes

  /// Returns the ranks that hold the same weights, but for those of experts.
  int64_t replicas() const { return dp * cp; }
  /// Returns the ranks that hold the same experts.
  int64_t expert_replicas() const { return tp * cp * dp / ep; }
  /// Returns the micro-batches of a step of `batch_size` sequences.
  int64_t micro_batches(int64_t batch_size) const { return batch_size / (dp * micro_batch_size); }
  bool operator==(const Degrees&) const = default;
};

/// Bytes of a rank at the peak.
struct MemoryByClass {
  int64_t weights = 0;      // that the rank stores; what it gathers for a pass is in `buffers`
  int64_t gradients = 0;    // that micro-batches are summed in
  int64_t optimizer = 0;    // AdamW's moments, and master weights
  int64_t activations = 0;  // saved for backward, of all micro-batches in flight
  int64_t buffers = 0;      // what else is live at the peak of one micro-batch, and gathered weights
  /// Returns the sum.
  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};
/// Returns the sum, class by class.
MemoryByClass operator+(const MemoryByClass& a, const MemoryByClass& b);

/// Seconds of a step on the slowest stage.
struct StepTime {
  double compute = 0;           // products, attention and elementwise operations
  double tensor_parallel = 0;   // collectives
  double context_parallel = 0;  // collectives
  double expert_parallel = 0;   // collectives
  double pipeline = 0;          // messages between stages
  double bubble = 0;            // waiting for the first and the last micro-batches
  double data_parallel = 0;     // collectives that no pass hides
  double optimizer = 0;         // its passes over the model states
  /// Returns the sum of the collectives and messages that nothing hides.
  double communication() const {
    return tensor_parallel + context_parallel + expert_parallel + pipeline + data_parallel;
  }
  /// Returns the sum.
  double total() const { return communication() + compute + bubble + optimizer; }
};

/// A way to train, with what it takes.
struct TrainingPlan {
  Degrees degrees;                  // how the step is split
  int64_t peak_stage = 0;           // the pipeline stage that needs the most memory
  MemoryByClass memory;             // of a rank of that stage
  StepTime time;                    // of a step
  StepFlop flop;                    // of a step over all ranks, with every key counted
  double flop_of_visible_keys = 0;  // of the model alone
};

/// Returns the bytes by class of `parameters` on a rank whose model states `replicas` ranks split.
MemoryByClass state_memory(int64_t parameters, const StateBytes& bytes, ZeroStage zero, int64_t replicas);

/// Returns the micro-batches' worth of saved tensors that a stage holds at most: min(m, p − stage) under
/// 1F1B; interleaved, of v chunks, (2(p − stage − 1) + (v − 1)p + 1) / v (Narayanan et al. 2021, arXiv
/// 2104.04473).
double micro_batches_in_flight(const Degrees& degrees, int64_t stage, int64_t micro_batches);

/// Returns the FLOP of a step over all ranks, of the experts only those that are chosen.
StepFlop step_flop(const TrainingTask& task, Recompute recompute, CountedKeys keys);

/// Evaluates plans of one task on one machine. Plans that differ in pipeline and data parallelism alone share
/// the costs of a micro-batch.
class TrainingPlanner {
 public:
  /// Errors: those of Workload::validate.
  TrainingPlanner(TrainingTask task, Machine machine);

  /// Returns memory and time of a split; the degrees' product need not be the task's ranks. Errors: those of
  /// Workload::validate.
  TrainingPlan evaluate(const Degrees& degrees);

 private:
  /// What a micro-batch's buffers depend on; its costs also on ep.
  using Key = std::tuple<int64_t, int64_t, bool, bool, int64_t, Recompute>;
  const StageBuffers& buffers_of(const Key& key, const Workload& workload);
  const MicroBatchCosts& costs_of(const Degrees& degrees);

  TrainingTask task_;
  Machine machine_;
  std::map<Recompute, StepFlop> flop_;
  double flop_of_visible_keys_;
  OneBlockStages stages_;
  std::map<Key, StageBuffers> buffers_;
  std::map<std::pair<Key, int64_t>, MicroBatchCosts> costs_;
};

}  // namespace shardwise::plan
