// The collectives between any two ranks of a group over MPI, and the steps that hierarchical.h makes others
// of.
//
// An announcement to all (channel.h), then messages straight from who has to who needs: a sum is the ranks'
// exchange of slices, added up in rank order by the kernels of comm/shm, and an all-gather. So bf16 is summed
// in fp32, every rank gets the same bits, and they are those of the same ranks in shared memory; MPI itself
// promises neither.
#pragma once
#include <string>
#include <vector>

#include "shardwise/comm/mpi/channel.h"
#include "shardwise/comm/mpi/collectives.h"

namespace shardwise::comm::mpi {

/// Of all that `x` is asked for but its size.
shm::Descriptor descriptor_of(Op op, const at::Tensor& x, int64_t numel, int64_t root = 0);
/// Of reductions and gatherings of uneven pieces.
shm::Descriptor descriptor_of(Op op, const at::Tensor& x, const std::vector<at::Tensor>& pieces);

/// `x` itself where it is contiguous, else memory for as much; and back.
at::Tensor dense_like(const at::Tensor& x);
void put_back(at::Tensor& x, const at::Tensor& dense);
/// Neighbouring parts of a flat tensor.
std::vector<at::Tensor> cut(const at::Tensor& flat, const std::vector<int64_t>& sizes);
std::vector<at::Tensor> cut_evenly(const at::Tensor& flat, int parts);

class Transport final : public Collectives {
 public:
  Transport(const Options& options, Meeting meeting);

  int rank() const { return channel_->rank(); }
  int size() const { return channel_->size(); }
  const std::shared_ptr<Channel>& channel() const { return channel_; }

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void abort(const std::string& reason) override { channel_->abort(reason); }
  void leave() override { channel_->leave(); }

  // Pieces of any sizes, as long as what one rank sends is what the other takes.
  void scatter(at::Tensor& out, const Tensors& pieces, int root);
  void gather(Tensors& pieces, const at::Tensor& shard, int root);
  void all_to_all(Tensors& outs, const Tensors& pieces);
  void barrier();

  // The steps, in an open collective, between the ranks of a `team` that all of them name alike. Dense flat
  // tensors; `pieces[i]` belongs to team[i].
  using Team = std::vector<int>;
  /// `out`, which may be the own piece, becomes the reduction of the team's pieces for this rank, in the
  /// team's order.
  void reduce_pieces(at::Tensor& out, const Tensors& pieces, Reduce reduce, const Team& team);
  void gather_pieces(const Tensors& pieces, const at::Tensor& shard, const Team& team);
  void broadcast_dense(const at::Tensor& x, int root, const Team& team);

 private:
  /// No elements for, or from, any rank.
  std::vector<int64_t> nothing() const { return std::vector<int64_t>(all_.size()); }
  void one_shot(at::Tensor& dense, const shm::Descriptor& descriptor, Reduce reduce);
  void two_shot(at::Tensor& dense, const shm::Descriptor& descriptor, Reduce reduce);

  std::shared_ptr<Channel> channel_;
  int64_t round_bytes_;
  Team all_;
};

}  // namespace shardwise::comm::mpi
