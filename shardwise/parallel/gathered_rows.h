// The result of an all_gather along the sequence, as one matrix of rows per rank. On shared memory the rows
// are read in place from the peers; elsewhere they are views of one gathered tensor. The fused products loop
// over the matrices and need not know which.
#pragma once
#include <memory>
#include <vector>

#include "shardwise/base/weight_gradient_rows.h"
#include "shardwise/comm/work.h"
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// Returns `x` [s, b, n] (contiguous) as a matrix [s·b, n].
inline at::Tensor as_matrix(const at::Tensor& x) {
  return x.view({x.size(0) * x.size(1), x.size(2)});
}

/// Returns the rows `range` of `full` [s, b, n] (contiguous) as a matrix [range.size()·b, n].
inline at::Tensor rows_matrix(const at::Tensor& full, const base::Range& range) {
  if (range == base::Range{0, full.size(0)}) return as_matrix(full);
  return full.narrow(kSequence, range.begin, range.size()).view({range.size() * full.size(1), full.size(2)});
}

/// The rows of all ranks' shards along the sequence.
class GatheredRows {
 public:
  /// Collective: all_gathers `shard` [s/t, b, h] (contiguous). With Overlap::on the all_gather may still be
  /// in flight on return.
  static GatheredRows gather(const at::Tensor& shard, const Step& step);

  /// Returns the rows of `rank` as a matrix [s_rank·b, h]; waits until they have arrived.
  at::Tensor matrix(int rank) const;
  /// Returns the rows of consecutive `ranks` as one matrix; waits until they have arrived. Copies those of
  /// several ranks if they are read in place.
  at::Tensor matrix(const base::Range& ranks) const;
  /// Returns the i-th rank in the order in which rows arrive: this rank first, then the ranks after it.
  int chunk_order(int i) const { return (step_rank_ + i) % sequence_.ranks(); }
  /// Returns those of `ranks` in that order.
  std::vector<int> chunk_order(const base::Range& ranks) const;
  int ranks() const { return sequence_.ranks(); }
  /// Returns the rows of `rank`, or of consecutive ranks, in another tensor `full` [s, b, f] (contiguous), as
  /// a matrix.
  at::Tensor matrix_of(const at::Tensor& full, int rank) const {
    return rows_matrix(full, sequence_.range(rank));
  }
  at::Tensor matrix_of(const at::Tensor& full, const base::Range& ranks) const {
    return rows_matrix(full, base::indices_of(sequence_, ranks));
  }

  /// Returns the runs of ranks that a weight gradient multiplies together (base/weight_gradient_rows.h), that
  /// of this rank first. Each index of the sequence has `batch` rows.
  std::vector<base::Range> runs(int64_t batch) const;

  /// Returns the gathered tensor [s, b, h], complete once `matrix` has returned for every rank; undefined if
  /// the shards are read in place.
  const at::Tensor& full() const { return full_; }
  /// Counts one more read of the peers' shards in place.
  void record_peer_read(const comm::Group& group) const;

 private:
  GatheredRows(const Step& step) : sequence_(step.sequence), step_rank_(step.group.rank()) {}
  base::Split sequence_;
  int step_rank_;
  std::shared_ptr<comm::PeerShards> shared_;
  std::shared_ptr<comm::ChunkedAllGather> in_flight_;
  at::Tensor full_;
};

}  // namespace shardwise::parallel
