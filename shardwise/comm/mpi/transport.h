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

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/mpi/channel.h"
#include "shardwise/comm/mpi/messages.h"

namespace shardwise::comm::mpi {

/// `x` itself where it is contiguous, else memory for as much; and back.
at::Tensor dense_like(const at::Tensor& x);
void put_back(at::Tensor& x, const at::Tensor& dense);
/// Neighboring parts of a tensor along dim 0; even ones.
std::vector<at::Tensor> cut(const at::Tensor& x, const std::vector<int64_t>& sizes);
std::vector<at::Tensor> cut_evenly(const at::Tensor& flat, int parts);

class Transport : public CollectiveBackend {
 public:
  Transport(const Options& options, Meeting meeting);
  /// Leaves: a peer that waits for more is told. Not the channel's, which messages may outlive the group by.
  ~Transport() override { channel_->leave(); }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  std::string backend_name() const override { return "shardwise_mpi"; }
  int rank() const override { return channel_->rank(); }
  int size() const override { return channel_->size(); }
  uint64_t sequence() const override { return channel_->sequence(); }
  std::chrono::milliseconds timeout() const override { return channel_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { channel_->set_timeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { channel_->limit_collectives(limit); }
  /// What collectives of this rank have sent to other hosts so far, but for announcements and what they hold.
  int64_t crossed_bytes() const { return channel_->crossed_bytes(); }

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) override;
  void barrier() override;
  void scatter(at::Tensor& out, const Tensors& pieces, int root) override;
  void gather(Tensors& pieces, const at::Tensor& shard, int root) override;
  void all_to_all(Tensors& outs, const Tensors& pieces) override;
  void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                       const std::vector<int64_t>& x_rows) override;
  WorkPtr send(const at::Tensor& x, int to, int tag) override { return messages_.send(x, to, tag); }
  WorkPtr receive(const at::Tensor& x, int from, int tag) override { return messages_.receive(x, from, tag); }
  void abort(const std::string& reason) override { channel_->abort(reason); }
  void leave() override { channel_->leave(); }

 protected:
  Channel& channel() { return *channel_; }

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
  void one_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce);
  void two_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce);

  std::shared_ptr<Channel> channel_;
  Messages messages_;
  int64_t round_bytes_;
  Team all_;
};

}  // namespace shardwise::comm::mpi
