// Communication of a rank in training: calls and bytes of every collective, counted as in comm/counters.h.
//
// Bytes are those sent per rank, independent of the algorithm (docs/algorithms.md). A group of one sends
// nothing, and backward sends nothing for gradients that are not required (required_gradients.h). Tests
// compare with the counters of real runs, at 0 %.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Calls and bytes of one collective.
struct Traffic {
  int64_t calls = 0;  // on one rank
  int64_t bytes = 0;  // sent by the rank
  bool operator==(const Traffic&) const = default;
};

/// The three collectives that training uses.
struct Collectives {
  Traffic all_reduce = {};      // f and f*, and the optimizer
  Traffic all_gather = {};      // g, and the loss
  Traffic reduce_scatter = {};  // g*
  Traffic broadcast = {};       // updated weights, between hosts
  /// Returns the sum over all.
  Traffic total() const;
  bool operator==(const Collectives&) const = default;
};
/// Returns the sum, collective by collective.
Collectives operator+(const Collectives& a, const Collectives& b);
/// Returns `times` as many calls and bytes.
Collectives operator*(int64_t times, const Collectives& one);

/// The collectives of a forward and its backward.
struct Passes {
  Collectives forward;   // of the forward pass
  Collectives backward;  // of the backward pass
  /// Returns forward and backward together.
  Collectives both() const { return forward + backward; }
};

/// Returns the collectives of the embedding.
Passes embedding_communication(const Workload& workload, int rank);
/// Returns the collectives of one decoder block: in each direction two f or g (column-parallel) and two f* or
/// g* (row-parallel). Under full recomputation the backward, if there is one, also repeats the forward's
/// collectives except the last. The split-batch schedule doubles the calls. Blocks differ in which of their
/// parameters are frozen.
Passes block_communication(const Workload& workload, int rank, int64_t layer);
/// The collectives of a block's layers, each of which overlaps with its layer's own products.
struct LayerPasses {
  Passes qkv;   // of the projection to queries, keys and values
  Passes out;   // of the projection after attention
  Passes up;    // of the MLP's first GEMM; empty without an MLP
  Passes down;  // of the MLP's last GEMM; empty without an MLP
};
/// Returns the collectives of a block layer by layer. Nothing is recomputed, and the batch is not split.
LayerPasses layer_communication(const Workload& workload, int rank, int64_t layer);
/// Returns the collectives of a block's MLP: one f or g and one f* or g* in each direction. Nothing is
/// recomputed, and the batch is not split.
Passes mlp_communication(const Workload& workload, int rank, int64_t layer);
/// Returns the collectives of final norm, head and loss.
Passes head_communication(const Workload& workload, int rank);
/// Returns the collectives of a micro-batch: embedding, blocks and head, as far as the stage has them.
Passes micro_batch_communication(const Workload& workload, int rank);

/// Returns the collectives of one optimizer step of a replica with as many micro-batches: one all_reduce of
/// the gradients that are partial sums (parameters.h), or with sharded gradients one for each micro-batch and
/// part of the model that has some; and one of a single element for the gradient norm over all replicas.
/// `replica`: from 0 to dp − 1.
Collectives optimizer_communication(const Workload& workload, int rank, int replica = 0,
                                    int64_t micro_batches = 1);

/// Returns its part over all ranks: the all_reduce of the norm.
Collectives norm_communication(const Workload& workload, int rank, int replica);

/// Returns the all_reduce of the loss over stages and replicas.
Collectives loss_communication(const Workload& workload, int replica);

/// Returns the collectives that sum a step over replicas: one all_reduce of all main gradients of the shard,
/// and one of the loss in fp64. With split optimizer states the first one is a reduce_scatter, and an
/// all_gather of the updated weights follows, unless they are shared, or broadcasts if those of a host share
/// them; with sharded gradients every part of the model has its own, and as many reduce_scatters as the
/// replica with the most micro-batches has, `rounds`; sharded weights are gathered in every forward and
/// backward instead. `replica`: from 0 to dp − 1.
Collectives replica_communication(const Workload& workload, int rank, int replica, int64_t rounds = 1);

/// What a rank sends to the same rank of other pipeline stages.
struct StageMessages {
  Traffic sent;               // in a step
  int64_t largest_bytes = 0;  // of one message
};
/// Returns the messages of a step: the residual stream of each micro-batch to the next stage, its gradient to
/// the stage before, if a parameter before this stage is trained; and of a trained embedding that is tied to
/// the head the last stage's gradient, and the first stage's new weight.
StageMessages stage_messages(const Workload& workload, int rank, int64_t micro_batches);

/// Returns the elements of all gradients that are partial sums.
int64_t synchronized_elements(const Workload& workload);

}  // namespace shardwise::plan
