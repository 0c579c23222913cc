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

/// The time of collectives of one group by the ring algorithm.
class CollectiveTime {
 public:
  /// A ring across nodes enters and leaves a node once. It uses the network ports of all its ranks there, but
  /// is not faster than the link within the node.
  CollectiveTime(const Machine& machine, const RankGroup& group);

  /// Returns the seconds of an all_gather or reduce_scatter in which each rank sends `bytes`.
  double half(double bytes) const { return seconds(bytes, 1); }
  /// Returns the seconds of an all_reduce in which each rank sends `bytes`, in both halves together.
  double all_reduce(double bytes) const { return seconds(bytes, 2); }
  /// Returns the seconds of a message of `bytes` to the next rank.
  double send(double bytes) const;
  /// Returns the seconds of all calls.
  double of(const Collectives& collectives) const;

 private:
  double seconds(double bytes, int halves) const;
  double of(const Traffic& traffic, int halves) const;

  int64_t ranks_;
  double bytes_per_second_, seconds_per_call_, seconds_per_hop_;
};

}  // namespace shardwise::plan
