// Data parallelism: ranks that hold the same shards of a model, compute gradients of different micro-batches
// and update the same weights.
#pragma once
#include <optional>

#include "shardwise/parallel/flat_gradients.h"
#include "shardwise/parallel/flat_weights.h"
#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/sharded_gradients.h"

namespace shardwise::parallel {

/// What replicas split. All have the same bits.
enum class Replication {
  whole,   // nothing: each updates all of its weights (ZeRO stage 0, Rajbhandari et al. 2020)
  split,   // optimizer states: each updates the rows that it owns, and gathers the others (stage 1)
  shared,  // as split, with one copy of the weights, which all replicas read and each updates in part
};

/// The model states of a rank among its replicas. In a step, after the last backward and the sums over other
/// axes: sum_gradients_, the optimizer's update of the rows of `updated`, finish_update_. If gradients are
/// sharded, sum_part_ replaces sum_gradients_. All do nothing in a group of one.
class DataParallel {
 public:
  /// Allocates the main gradients, zeroed. Weights of model::WeightUse::replicated_training have no values
  /// before. If there are replicas, makes them one tensor, and unless they are
  /// whole the weights too, which lose their values; both are in the symmetric heap of the data-parallel
  /// `group` if it has one. Collective if weights are shared, which needs a symmetric heap; then all ranks
  /// must drop the parameters between the same collectives. The ranks of `group` must hold the same shards.
  /// Errors: c10::ValueError if parameters have different dtypes.
  DataParallel(const ParamSpecs& specs, const comm::Group& group, Replication replication);
  /// As above, but each rank keeps only the gradients of the rows that it updates (ZeRO stage 2), and
  /// main_grad is that of ShardedGradients.
  /// Errors: c10::ValueError if several replicas are whole, too.
  DataParallel(const ParameterParts& parts, const comm::Group& group, Replication replication);

  /// Returns true if this rank has to set the weights: all do, but of shared ones only rank 0. When it has,
  /// call publish_weights_.
  bool sets_weights() const { return replication_ != Replication::shared || group_.rank() == 0; }
  /// Makes every rank read weights that others have set or updated: an all_gather of the rows that ranks own,
  /// in place; a barrier if they are shared; nothing if they are whole. Collective.
  void publish_weights_();

  /// Sums the gradients of `updated` over the ranks, in rank order. Collective. Cost: an all_reduce of all
  /// elements if they are whole, else a reduce_scatter, in place. The other rows keep this rank's part, which
  /// peers may read until the next collective has completed.
  void sum_gradients_();
  /// Sums the gradients of a part of one micro-batch, if they are sharded: ShardedGradients::sum_part_. Every
  /// rank calls it as often, though it may have fewer micro-batches. Collective.
  void sum_part_(size_t part);
  /// Zeroes the gradients that are not of `updated`, and calls publish_weights_.
  void finish_update_();

  /// Returns what the replicas split; whole if there is one.
  Replication replication() const { return replication_; }
  /// Returns the rows that this rank counts in norms and writes to checkpoints: each is owned by one replica.
  const OwnedRows& owned() const { return owned_; }
  /// Returns the rows that this rank updates, of which its optimizer has the states: all if they are whole.
  const OwnedRows& updated() const { return updated_; }
  /// Returns true if this rank keeps only the gradients of `updated`; false in a group of one.
  bool shards_gradients() const { return sharded_.has_value(); }

 private:
  void split_weights_(const ParamSpecs& specs);

  comm::Group group_;
  Replication replication_;
  OwnedRows owned_, updated_;
  std::optional<FlatWeights> weights_;      // unless whole
  std::optional<FlatGradients> gradients_;  // of several ranks, unless sharded
  std::optional<ShardedGradients> sharded_;
};

}  // namespace shardwise::parallel
