// What one micro-batch takes on a rank, block by block: the sums over a pipeline stage are computed from
// these.
//
// Blocks whose attention has the same window cost the same. So a model of three blocks tells all costs: the
// first block's stage has the embedding, the last one's the head, the one between neither.
#pragma once
#include <map>

#include "shardwise/plan/machine.h"
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// The costs of a block, or of what the first or the last stage has besides.
struct LayerCosts {
  double forward = 0, backward = 0;  // seconds of computation
  double tensor_parallel = 0;        // seconds of collectives, forward and backward
  int64_t saved_bytes = 0;           // for backward
  int64_t parameters = 0;            // elements of the rank's shards
  /// Adds the costs of another layer.
  LayerCosts& operator+=(const LayerCosts& layer);
};

/// The costs of a micro-batch on a rank. Every parameter is trained.
class MicroBatchCosts {
 public:
  /// `workload`: of the whole model, on one stage. Errors: those of Workload::validate.
  MicroBatchCosts(const Workload& workload, const Machine& machine);

  /// Returns the sums over the stage of the workload's model that has these blocks.
  LayerCosts of_stage(const base::Range& blocks) const;
  /// Returns the bytes that are live at the peak of a pass beside the model states and saved tensors of the
  /// blocks.
  int64_t buffer_bytes(const base::Range& blocks) const;
  /// Returns the elements of one block's parameters.
  int64_t block_parameters() const { return block_.begin()->second.parameters; }

 private:
  using Window = std::optional<int64_t>;
  bool is_first(const base::Range& blocks) const { return blocks.begin == 0; }
  bool is_last(const base::Range& blocks) const { return blocks.end == config_.num_hidden_layers; }

  config::Config config_;
  std::map<Window, LayerCosts> block_;
  LayerCosts embedding_, head_;
  int64_t tied_parameters_ = 0;  // of the embedding, if it is the head
  int64_t embedding_buffers_, block_buffers_, head_buffers_;
};

}  // namespace shardwise::plan
