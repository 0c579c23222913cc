// What one micro-batch takes on a rank, block by block: the sums over a pipeline stage are computed from
// these.
//
// Blocks of one kind (block_kind.h) cost the same. So a model of three blocks tells all costs: the first
// block's stage has the embedding, the last one's the head, the one between neither.
#pragma once
#include <map>

#include "shardwise/plan/machine.h"
#include "shardwise/plan/one_block_stages.h"

namespace shardwise::plan {

/// The costs of a block, or of what the first or the last stage has besides.
struct LayerCosts {
  double forward = 0;              // seconds of computation
  double backward = 0;             // seconds of computation, also of what is recomputed
  double tensor_parallel = 0;      // seconds of collectives that no product hides, forward and backward
  double context_parallel = 0;     // seconds of its collectives
  double expert_parallel = 0;      // seconds of its exchanges
  int64_t saved_bytes = 0;         // for backward
  int64_t parameters = 0;          // elements of the rank's shards, but for those of experts
  int64_t trained_parameters = 0;  // of these, those that are not frozen
  int64_t expert_parameters = 0;   // elements of the rank's experts
  int64_t synchronized = 0;        // elements whose gradients tensor-parallel ranks sum after the step
  /// Returns the seconds of collectives.
  double communication() const { return tensor_parallel + context_parallel + expert_parallel; }
  /// Adds the costs of another layer.
  LayerCosts& operator+=(const LayerCosts& layer);
};

/// Bytes that are live at the peak of a pass beside the model states and what the stage's blocks save, but
/// for those of experts.
struct StageBuffers {
  int64_t first = 0;  // of a stage with the embedding
  int64_t inner = 0;  // of a stage with neither embedding nor head
  int64_t last = 0;   // of a stage with the head
};

/// Returns the buffers of each kind of stage. `workload`: as for MicroBatchCosts. Does not depend on its ep.
StageBuffers stage_buffers(const Workload& workload, OneBlockStages& stages);

/// The costs of a micro-batch on a rank.
class MicroBatchCosts {
 public:
  /// `workload`: of the whole model, on one stage. Errors: those of Workload::validate.
  MicroBatchCosts(const Workload& workload, const StageBuffers& buffers, const Machine& machine,
                  OneBlockStages& stages);

  /// Returns the sums over the stage of the workload's model that has these blocks.
  LayerCosts of_stage(const base::Range& blocks) const;
  /// Returns the bytes that are live at the peak of a pass beside the model states and saved tensors of the
  /// blocks.
  int64_t buffer_bytes(const base::Range& blocks) const;
  /// Returns the trained elements that the embedding and a tied head share; 0 if the head has its own.
  int64_t trained_tied_parameters() const { return is_tied_trained_ ? tied_parameters_ : 0; }
  /// Returns whether the stage of these blocks sends gradients to the stage before it, or the first one gets
  /// gradients.
  bool sends_gradients(const base::Range& blocks) const;
  /// Returns the block that has the most parameters of a rank.
  const LayerCosts& largest_block() const;

 private:
  bool is_first(const base::Range& blocks) const { return blocks.begin == 0; }
  bool is_last(const base::Range& blocks) const { return blocks.end == config_.num_hidden_layers; }

  config::Config config_;
  std::vector<BlockKind> kinds_;
  std::map<BlockKind, LayerCosts> block_;
  LayerCosts embedding_, head_;
  int64_t tied_parameters_ = 0;   // of the embedding, if it is the head
  bool is_tied_trained_ = false;  // the embedding, if it is the head
  StageBuffers buffers_;
};

}  // namespace shardwise::plan
