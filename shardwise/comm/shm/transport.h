// The collectives of the shared-memory backend on CPU tensors, called by Group (through SymmetricHeap) and by
// c10d (through Backend).
//
// Peers read an input in place if it is contiguous and in the symmetric heap. Otherwise the input is staged:
// copied to the slot if it is small, else to a heap block. channel.h orders collectives and detects failures;
// heap.h decides when memory is reused.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/reduce_isa.h"
#include "shardwise/comm/shm/channel.h"
#include "shardwise/comm/shm/messages.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm::shm {

struct ConnectOptions;

/// A collective's input in memory that peers can read: the tensor itself, a copy in the slot, or a copy in a
/// heap block.
struct StagedInput {
  std::byte* data = nullptr;
  bool in_place = false;  // peers read the caller's tensor itself
  HeapBlock block;
};

/// Whether a collective waits (departure barrier) until the peers have read the inputs that they read in
/// place. If not, the caller must not overwrite such an input before a later collective has completed.
enum class WaitForPeers { yes, no };

class Transport final : public SymmetricHeap,
                        public CollectiveBackend,
                        public std::enable_shared_from_this<Transport> {
 public:
  /// Joins a group, also of one rank. Collective. Errors: those of shm::connect.
  static std::shared_ptr<Transport> connect(const ConnectOptions& options);
  /// `job`: keeps the channel of `part` alive.
  Transport(Rendezvous rendezvous, int rank, std::chrono::milliseconds timeout, const PartOfJob& part = {},
            std::shared_ptr<CollectiveBackend> job = nullptr);

  std::string backend_name() const override { return "shardwise"; }
  std::vector<int> nodes() const override { return std::vector<int>(size_t(size())); }
  int rank() const override { return channel_.rank(); }
  int size() const override { return channel_.size(); }
  uint64_t sequence() const override { return channel_.sequence(); }
  std::chrono::milliseconds timeout() const override { return channel_.timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { channel_.set_timeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { channel_.limit_collectives(limit); }
  Channel& channel() { return channel_; }
  GroupGuard* guard() override { return &channel_; }
  SymmetricHeap* symmetric_heap() override { return this; }
  const OneShotLimit& one_shot() const override { return one_shot_; }
  Inbox& inbox() { return inbox_; }

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override;
  bool contains(const at::Tensor& x) const override;
  std::shared_ptr<PeerShards> share_shard(const at::Tensor& shard, const base::Split& split, uint64_t tag,
                                          Op op) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  std::unique_ptr<Work> all_reduce_async_(const at::Tensor& x, uint64_t number) override;
  void all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split,
                      int64_t dim) override;
  void reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                          InputReuse reuse) override;
  void run_on_peer_buffers(const at::Tensor& x, const base::Split* rows, PeerBufferKernel read) override;
  void abort(const std::string& reason) override { channel_.abort(reason); }
  void leave() override { channel_.leave(); }
  int64_t live_bytes() const override { return heap_->live_bytes(); }
  int64_t peak_bytes() const override { return heap_->peak_bytes(); }
  void reset_peak() override { heap_->reset_peak(); }
  int64_t copied_bytes() const override {
    return copied_bytes_ + inbox_.copied_bytes() + outbox_.copied_bytes();
  }
  int64_t waited_ns() const override { return channel_.waited_ns(); }

  // c10d's collectives.
  void broadcast_(at::Tensor& x, int root) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override {
    all_gather_pieces(pieces, shard, /*dim=*/0);
  }
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) override;
  void barrier() override;
  void scatter(at::Tensor& out, const Tensors& pieces, int root) override;
  void gather(Tensors& pieces, const at::Tensor& shard, int root) override;
  void all_to_all(Tensors& outs, const Tensors& pieces) override;
  void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                       const std::vector<int64_t>& x_rows) override;
  void send(const at::Tensor& x, int to, int tag) override;
  std::unique_ptr<PendingReceive> receive(const at::Tensor& x, int from, int tag) override;

  /// A barrier by messages to rank 0, which names the first rank (or all ranks) missing after `limit`.
  void monitored_barrier(std::chrono::milliseconds limit, bool name_all);

 private:
  struct Rows {
    int64_t begin, count;              // in elements of the flat message
    const std::byte* local = nullptr;  // this rank's input, read instead of its staged copy
  };
  class AsyncTwoShot;  // deferred_collectives.cpp
  struct PieceIndex {
    int sender, index;  // index among the sender's pieces
  };

  // The inputs of an op. `reserved` bytes at the start of the slot are already used.
  StagedInput stage(Op op, const at::Tensor& x, int64_t reserved = 0);
  StagedInput stage_all(Op op, const std::vector<at::Tensor>& pieces, int64_t reserved = 0);
  StagedInput stage_bytes(Op op, int64_t bytes, int64_t reserved);
  void copy_in(std::byte* target, const at::Tensor& x);
  void copy_out(at::Tensor& target, const std::byte* source);
  Arrivals& post(Descriptor descriptor, const StagedInput& staged);
  const std::byte* input_of(Arrivals& arrivals, int peer);
  void finish(WaitForPeers wait_for_peers);

  int64_t store_sizes(Op op, const std::vector<int64_t>& numels);
  void copy_piece(at::Tensor& target, Arrivals& arrivals, PieceIndex piece);
  void wait_for_barrier_messages(std::chrono::milliseconds limit, bool name_all);

  void one_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel);
  void two_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel);
  void all_reduce_in_place_or_chunked(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel);
  HeapBlock allocate_chunk_buffers(const at::Tensor& x) const;
  void all_reduce_chunked(at::Tensor& x, const HeapBlock& buffers, Descriptor descriptor,
                          ReduceKernel kernel);
  void reduce_slices(const at::Tensor& x, Arrivals& arrivals, ReduceKernel kernel);
  void reduce_rows(Arrivals& arrivals, Rows rows, at::Tensor& out, ReduceKernel kernel);
  void reduce_scatter_rows(at::Tensor& out, const at::Tensor& x, Rows rows, Descriptor descriptor,
                           WaitForPeers wait_for_peers);
  void all_gather_pieces(Tensors& pieces, const at::Tensor& shard, int64_t dim);

  OneShotLimit one_shot_;
  std::shared_ptr<CollectiveBackend> job_;  // null: the group is the whole job
  Channel channel_;
  std::shared_ptr<Heap> heap_;
  Inbox inbox_;
  Outbox outbox_;
  int64_t copied_bytes_ = 0;
  std::vector<const void*> sources_;  // scratch of the reductions
  std::vector<void*> targets_;
};

}  // namespace shardwise::comm::shm
