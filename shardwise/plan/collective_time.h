// The time of a collective on a machine, by latency and bandwidth (docs/algorithms.md).
#pragma once
#include "shardwise/plan/communication.h"
#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// A group of ranks on a machine. Ranks are numbered so that those of a node are consecutive.
struct RankGroup {
  int64_t ranks = 1;   // in the group
  int64_t stride = 1;  // from one of its ranks to the next
  /// Returns the number of the group's ranks that share a node.
  int64_t ranks_in_node(const Machine& machine) const;
  /// Returns whether the group is on several nodes.
  bool crosses_nodes(const Machine& machine) const;
};

/// The time of collectives of one group: as measured among as many ranks of a node, else by the machine's
/// algorithm.
class CollectiveTime {
 public:
  /// A ring across nodes enters and leaves a node once. It uses the network ports of all its ranks there, but
  /// is not faster than the link within the node. Errors: c10::ValueError if the group is on several nodes
  /// and the machine has no network.
  CollectiveTime(const Machine& machine, const RankGroup& group);

  /// Returns the seconds of an all_gather in which each rank sends `bytes`.
  double all_gather(double bytes) const;
  /// Returns the seconds of a reduce_scatter in which each rank sends `bytes`.
  double reduce_scatter(double bytes) const;
  /// Returns the seconds of an all_reduce in which each rank sends `bytes`, in both halves together.
  double all_reduce(double bytes) const;
  /// Returns the seconds of an all_to_all in which each rank sends `bytes`, as much to each other one.
  double all_to_all(double bytes) const;
  /// Returns the seconds of a message of `bytes` to the next rank.
  double send(double bytes) const;
  /// Returns the seconds of all calls.
  double of(const Collectives& collectives) const;

  /// Returns the part of a device's arithmetic that a running collective takes.
  double processor_share() const { return processor_share_; }

 private:
  double half(double bytes) const;
  double ring(double bytes, int halves) const;
  double two_shot(double bytes, int halves) const;
  double tree(double bytes) const;
  double to_all_others(double bytes) const;

  Algorithm algorithm_;

  int64_t ranks_;
  std::optional<MeasuredCollectives> measured_;
  double bytes_per_second_, seconds_per_call_, seconds_per_hop_, processor_share_;
  int64_t ranks_in_node_;
  double within_bytes_per_second_, across_bytes_per_second_;  // of one rank
};

}  // namespace shardwise::plan
