// Flat collectives over MPI, and the steps from which hierarchical.h builds its own.
//
// Each rank announces the collective to all peers (channel.h), then sends its data directly to the ranks that
// need it. An all_reduce is a reduce_scatter of slices, added in rank order by the kernels of comm/shm, and
// an all_gather. bf16 is therefore summed in fp32, and every rank gets the bits that the same ranks get in
// shared memory; MPI's own reductions guarantee neither.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/mpi/channel.h"

namespace shardwise::comm::mpi {

/// Returns consecutive slices along dim 0, of the given sizes or evenly split.
std::vector<at::Tensor> split_rows(const at::Tensor& x, const std::vector<int64_t>& sizes);
std::vector<at::Tensor> split_evenly(const at::Tensor& flat, int parts);

/// Point-to-point messages.
///
/// An envelope {dtype, numel, tag} precedes each message, so that a size or dtype mismatch is an error that
/// names both sides; it also carries a small message. A longer message follows under a tag of its own, so
/// that receives may be waited for in any order. A send copies its tensor and returns; MPI's thread
/// progresses it (process.h). Messages of one source and tag match receives in the order of posting.
class Messages {
 public:
  explicit Messages(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  /// Sends a copy of `x`. Errors: c10::ValueError if MPI cannot represent the tag.
  void send(const at::Tensor& x, int peer, int tag);
  /// Posts a receive into `x`; `peer` may be kAnySource.
  std::unique_ptr<PendingReceive> receive(const at::Tensor& x, int peer, int tag);

 private:
  int to_mpi_tag(int tag, const char* op) const;

  std::shared_ptr<Channel> channel_;
  uint64_t sent_ = 0, received_ = 0;
};

/// The flat transport.
class Transport : public CollectiveBackend {
 public:
  Transport(const ConnectOptions& options, Membership membership);
  /// Leaves the group. Done here because messages in flight may keep the channel alive for longer.
  ~Transport() override { channel_->leave(); }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  std::string backend_name() const override { return "shardwise_mpi"; }
  int rank() const override { return channel_->rank(); }
  int size() const override { return channel_->size(); }
  std::vector<int> nodes() const override;
  uint64_t sequence() const override { return channel_->sequence(); }
  GroupGuard* guard() override { return channel_.get(); }
  std::chrono::milliseconds timeout() const override { return channel_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { channel_->set_timeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { channel_->limit_collectives(limit); }
  /// Returns the bytes that this rank's collectives have sent to other nodes so far, without announcements.
  int64_t inter_node_bytes() const { return channel_->inter_node_bytes(); }

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
  void send(const at::Tensor& x, int to, int tag) override { messages_.send(x, to, tag); }
  std::unique_ptr<PendingReceive> receive(const at::Tensor& x, int from, int tag) override {
    return messages_.receive(x, from, tag);
  }
  void abort(const std::string& reason) override { channel_->abort(reason); }
  void leave() override { channel_->leave(); }

 protected:
  Channel& channel() { return *channel_; }

  // Steps of an open collective between the ranks of a `subgroup`, which must be the same on all of its
  // ranks. Tensors are flat and contiguous; `pieces[i]` belongs to subgroup[i].
  using Subgroup = std::vector<int>;
  /// Writes to `out` the reduction, in the subgroup's order, of the subgroup's pieces for this rank. `out`
  /// may be this rank's piece.
  void reduce_pieces(at::Tensor& out, const Tensors& pieces, Reduce reduce, const Subgroup& subgroup);
  void gather_pieces(const Tensors& pieces, const at::Tensor& shard, const Subgroup& subgroup);
  void broadcast_dense(const at::Tensor& x, int root, const Subgroup& subgroup);

 private:
  /// Returns a size of zero for every rank.
  std::vector<int64_t> zero_sizes() const { return std::vector<int64_t>(all_.size()); }
  void one_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce);
  void two_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce);

  std::shared_ptr<Channel> channel_;
  Messages messages_;
  int64_t round_bytes_;
  Subgroup all_;
};

}  // namespace shardwise::comm::mpi
