// Data parallelism: ranks that hold the same shards of a model, compute gradients of different micro-batches
// and update the same weights.
#pragma once
#include <optional>

#include "shardwise/parallel/flat_gradients.h"
#include "shardwise/parallel/flat_weights.h"
#include "shardwise/parallel/host_groups.h"
#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/sharded_gradients.h"
#include "shardwise/parallel/sharded_weights.h"

namespace shardwise::parallel {

/// What replicas split. All have the same bits.
enum class Replication {
  whole,    // nothing: each updates all of its weights (ZeRO stage 0, Rajbhandari et al. 2020)
  split,    // optimizer states: each updates the rows that it owns, and gathers the others (stage 1)
  shared,   // as split, with one copy of the weights, which all replicas read and each updates in part
  sharded,  // as split, and each keeps only the weights and gradients of its rows, and gathers the others
            // part by part before it computes with them (stage 3)
};

/// The model states of a rank among its replicas. In a step, after the last backward and the sums over other
/// axes: sum_gradients_, the optimizer's update of the rows of `updated`, finish_update_. If gradients are
/// sharded, begin_part_ and finish_part_ replace sum_gradients_.
/// All do nothing in a group of one.
class DataParallel {
 public:
  /// Allocates the main gradients, zeroed. Weights of model::WeightUse::replicated_training have no values
  /// before. If there are replicas, makes them one tensor, and unless they are
  /// whole the weights too, which lose their values; both are in the symmetric heap of the data-parallel
  /// `group` if it has one. Collective if weights are shared, which needs a symmetric heap; then all ranks
  /// must drop the parameters between the same collectives. The ranks of `group` must hold the same shards.
  /// `hosts`: which replicas share weights; default: all.
  /// Errors: c10::ValueError if parameters have different dtypes.
  DataParallel(const ParamSpecs& specs, const comm::Group& group, Replication replication,
               const std::optional<HostGroups>& hosts = {});
  /// As above, but each rank keeps only the gradients of the rows that it updates (ZeRO stage 2), and
  /// main_grad is that of ShardedGradients; if weights are sharded, value is that of ShardedWeights.
  /// Errors: c10::ValueError if several replicas are whole, too.
  DataParallel(const ParameterParts& parts, const comm::Group& group, Replication replication,
               const std::optional<HostGroups>& hosts = {});

  /// Returns true if this rank has to set the weights: all do, but of those that share a copy only the first.
  /// When it has, call wait_until_set.
  bool sets_weights() const;
  /// Takes note that the value of a parameter has just been set: of sharded weights, keeps the rows that this
  /// rank owns, since another part's values may be set in the same buffer next.
  void keep_set_(Parameter& parameter) const;
  /// Returns when the rank that sets this rank's weights has called it too. Collective.
  void wait_until_set() const;

  /// Sums the gradients of `updated` over the ranks, in rank order. Collective. Cost: an all_reduce of all
  /// elements if they are whole, else a reduce_scatter, in place. The other rows keep this rank's part, which
  /// peers may read until the next collective has completed.
  void sum_gradients_();
  /// Makes the weights of a part readable, if they are sharded (ShardedWeights::read_for_forward_). Call it
  /// in a micro-batch's forward before each part computes. Collective.
  void begin_part_(size_t part);
  /// Sums the gradients of a part, if they are sharded (ShardedGradients::sum_part_), and makes the weights
  /// of the part before readable. Call it in a micro-batch's backward when the gradients of each part are
  /// complete, from the last part to the first. Every rank calls begin_part_ and finish_part_ as often; one
  /// that has fewer micro-batches does so without computing. Collective.
  void finish_part_(size_t part);
  /// Makes the next begin_part_ gather again. For whoever runs a forward without a backward.
  void forget_parts_();
  /// Zeroes the gradients that are not of `updated`, and makes every rank read the weights that others have
  /// updated. Collective. Cost: nothing if they are whole; an all_gather of the rows that ranks own, in
  /// place; a barrier if they are shared; if those of a host share them, a broadcast of the rows of each
  /// host's owner `across` hosts, in place, and a barrier. If they are sharded, begin_part_ gathers them.
  void finish_update_();

  /// Returns what the replicas split; whole if there is one.
  Replication replication() const { return replication_; }
  /// Returns the groups of the replicas that share weights on each host; nullopt if they do not, or all do.
  const std::optional<HostGroups>& hosts() const { return hosts_; }
  /// Returns the rows that this rank counts in norms and writes to checkpoints: each is owned by one replica.
  const OwnedRows& owned() const { return owned_; }
  /// Returns the rows that this rank updates, of which its optimizer has the states: all if they are whole.
  const OwnedRows& updated() const { return updated_; }
  /// Returns true if this rank keeps only the gradients of `updated`; false in a group of one.
  bool shards_gradients() const { return sharded_gradients_.has_value(); }
  /// Returns true if this rank keeps only the weights of `updated`; false in a group of one.
  bool shards_weights() const { return sharded_weights_.has_value(); }

 private:
  void split_weights_(const ParamSpecs& specs);
  bool shares_weights() const { return replication_ == Replication::shared; }
  /// Returns the replicas that share this rank's weights.
  const comm::Group& sharers() const { return hosts_ ? hosts_->within : group_; }

  comm::Group group_;
  Replication replication_;
  std::optional<HostGroups> hosts_;
  OwnedRows owned_, updated_;
  std::optional<FlatWeights> weights_;      // unless whole or sharded
  std::optional<FlatGradients> gradients_;  // of several ranks, unless sharded
  std::optional<ShardedGradients> sharded_gradients_;
  std::optional<ShardedWeights> sharded_weights_;
};

}  // namespace shardwise::parallel
