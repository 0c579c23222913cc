// The ranks' shards along the sequence, wherever they lie: read in place on shared memory, cut from one
// gathered tensor elsewhere. The fused products loop over them and never see the difference.
#pragma once
#include <memory>

#include "shardwise/comm/chunked_all_gather.h"
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// Those of `range` of [s, b, n] (contiguous), as a matrix.
inline at::Tensor rows_matrix(const at::Tensor& whole, const base::Range& range) {
  return whole.narrow(kSequence, range.begin, range.size())
      .view({range.size() * whole.size(1), whole.size(2)});
}

class Rows {
 public:
  /// Collective: stands for an all_gather of `shard` [s/t, b, h] (contiguous), which with Overlap::on may
  /// still be under way.
  static Rows gather(const at::Tensor& shard, const Step& step);
  /// From a tensor that holds all rows already.
  static Rows of_whole(at::Tensor whole, const Step& step);

  /// `rank`'s rows as a matrix [s_rank·b, h]; waits for that rank.
  at::Tensor matrix(int rank) const;
  /// The ranks in the order in which their rows come: the own first.
  int nth(int i) const { return (step_rank_ + i) % sequence_.ranks(); }
  int ranks() const { return sequence_.ranks(); }
  /// `rank`'s rows of another whole tensor [s, b, f] (contiguous), as a matrix.
  at::Tensor matrix_of(const at::Tensor& whole, int rank) const {
    return rows_matrix(whole, sequence_.range(rank));
  }

  /// All rows in one tensor, once every rank's `matrix` was asked for; undefined where they are read in
  /// place.
  const at::Tensor& whole() const { return whole_; }
  /// Counts another reading of all shards in place.
  void record_peer_read(const comm::Group& group) const;

 private:
  Rows(const Step& step) : sequence_(step.sequence), step_rank_(step.group.rank()) {}
  base::Split sequence_;
  int step_rank_;
  std::shared_ptr<comm::PeerShards> exposed_;
  std::shared_ptr<comm::ChunkedAllGather> arriving_;
  at::Tensor whole_;
};

/// [s, b, n] (contiguous) as [s·b, n].
inline at::Tensor as_matrix(const at::Tensor& x) {
  return x.view({x.size(0) * x.size(1), x.size(2)});
}

}  // namespace shardwise::parallel
