// A part of a model on its own: what an MLP or a decoder block computes, sends and holds on a rank, and how
// long it takes on a machine.
#pragma once
#include "shardwise/plan/communication.h"
#include "shardwise/plan/machine.h"
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// The part of a model.
enum class Part { mlp, block };
/// The passes over it: the forward, or the backward too.
enum class PassesOf { forward, forward_and_backward };

/// A part, the passes over it, and the model's sharding and batch.
struct PartWorkload {
  Part part;          // of the first block
  PassesOf passes;    // over it
  Workload workload;  // of the whole model
};

/// What the part takes on rank 0, which has the largest shard.
struct PartCosts {
  double flop = 0;              // of products and attention; half of the keys are visible
  Collectives collectives;      // calls and bytes
  int64_t weight_elements = 0;  // of all its parameters
};
/// Returns the costs. Errors: those of Workload::validate.
PartCosts part_costs(const PartWorkload& part);

/// Seconds of a part, none of whose communication is hidden.
struct PartTime {
  double compute = 0;        // products, attention and elementwise operations
  double communication = 0;  // collectives
  /// Returns the sum.
  double total() const { return compute + communication; }
};
/// Returns the time of rank 0. Errors: those of part_costs and CollectiveTime.
PartTime part_time(const PartWorkload& part, const Machine& machine);

/// Returns t_comm/t_compute of a part at constant rates. For an MLP of two products, [rows, d] by [d, 4d] and
/// back, with e bytes per element, the forward's is (R − 1)/d · eF/(8B): without rows.
double communication_ratio(const PartCosts& costs, double flop_per_second, double bytes_per_second);

/// Returns the model of the first `blocks` blocks, all with the attention of the first.
config::Config with_blocks(config::Config config, int64_t blocks);

/// The sizes of an MLP without biases.
struct MlpShape {
  int64_t hidden;  // features of the residual stream
  int64_t ffn;     // features inside the MLP
  bool is_gated;   // three products: gate, up and down; else two, and GeLU between them
};
/// Returns the smallest model of one block with this MLP that `ranks` ranks can share.
config::Config mlp_config(const MlpShape& shape, int64_t ranks);

}  // namespace shardwise::plan
