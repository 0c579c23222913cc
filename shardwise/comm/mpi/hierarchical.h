// Hierarchical collectives for nodes with equally many ranks: shared memory within a node, MPI between nodes.
//
// all_reduce: a reduce_scatter within each node; a reduction of every slice over the nodes by the ranks that
// have its partial sums, one rank per node; an all_gather within each node. For n bytes, a node exchanges
// (nodes - 1)/nodes * 2n bytes with the other nodes; flat messages exchange that times the ranks per node.
// Partial sums are added in rank order within a node and in node order between nodes. fp16 and bf16 stay fp32
// until the end and are rounded once, so their partial sums use twice their bytes between nodes: 3n instead
// of 2n for an all_reduce, 2n instead of n for a reduce_scatter. Every rank gets the same bits; they differ
// from the flat order's by rounding. Collectives that gain nothing from this (few bytes, reductions other
// than sums) use the flat algorithm.
#pragma once
#include <memory>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/comm/mpi/transport.h"

namespace shardwise::comm::mpi {

/// The ranks of a group by node; nodes are in the order of their lowest ranks.
struct Nodes {
  std::vector<std::vector<int>> ranks;
  int node = 0;         // index of this rank's node
  int local_rank = 0;   // this rank's index within its node
  base::Secret secret;  // of this rank's node: that of its first rank
  static Nodes of(const Membership& membership);
  int count() const { return static_cast<int>(ranks.size()); }
  int local_size() const { return static_cast<int>(ranks[size_t(node)].size()); }
  bool is_even() const;
};

/// Creates a shared-memory group of the ranks of this node, in their order.
Group connect_node(const ConnectOptions& options, const Nodes& nodes);

/// The hierarchical transport. Collectives that it does not override are flat.
class Hierarchical final : public Transport {
 public:
  Hierarchical(const ConnectOptions& options, Membership membership, Nodes nodes);

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void limit_collectives(std::chrono::milliseconds limit) override;

 private:
  void reduce_part(at::Tensor& part, Reduce reduce);
  /// Reduces the nodes' partial sums in `partial`, split by `sizes`, and returns this node's piece.
  at::Tensor reduce_inter_node(const at::Tensor& partial, const std::vector<int64_t>& sizes, Reduce reduce);
  /// Returns the sizes of the pieces for the ranks with local rank `local_rank`, by node.
  std::vector<int64_t> inter_node_sizes(const Tensors& pieces, int local_rank) const;
  int64_t largest_inter_node_size(const Tensors& pieces) const;
  template <class Call>
  void intra_node(const Call& call);
  template <class Call>
  void inter_node(const Call& call);

  Group intra_node_group_;
  Nodes nodes_;
  Subgroup inter_node_group_;  // the rank of every node that has this rank's local rank
};

}  // namespace shardwise::comm::mpi
