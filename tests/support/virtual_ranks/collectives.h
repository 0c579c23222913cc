// Collectives of ranks that share one device, which NCCL refuses: by copies in the host's memory.
#pragma once
#include "shardwise/comm/collective_backend.h"

namespace shardwise::virtual_ranks {

/// A CollectiveBackend of tensors on `device`, a GPU or the emulated device. Between captures of graphs the
/// host waits in each; in a graph a node calls the host. `host`, of tensors on the CPU, must outlive it.
class StagedCollectives final : public comm::CollectiveBackend {
 public:
  StagedCollectives(comm::CollectiveBackend& host, at::Device device) : host_(host), device_(device) {}

  std::string backend_name() const override { return "staged"; }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  at::Device device() const override { return device_; }
  comm::GroupGuard* guard() override { return host_.guard(); }
  uint64_t sequence() const override { return host_.sequence(); }
  std::chrono::milliseconds timeout() const override { return host_.timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { host_.set_timeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { host_.limit_collectives(limit); }

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, comm::Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, comm::Reduce reduce) override;
  void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, comm::Reduce reduce) override;
  void barrier() override { host_.barrier(); }
  void scatter(at::Tensor& out, const Tensors& pieces, int root) override;
  void gather(Tensors& pieces, const at::Tensor& shard, int root) override;
  void all_to_all(Tensors& outs, const Tensors& pieces) override;
  void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                       const std::vector<int64_t>& x_rows) override;

  void send(const at::Tensor& x, int to, int tag) override;
  std::unique_ptr<comm::PendingReceive> receive(const at::Tensor& x, int from, int tag) override;

  void abort(const std::string& reason) override { host_.abort(reason); }
  void leave() override { host_.leave(); }

 private:
  comm::CollectiveBackend& host_;
  at::Device device_;
};

}  // namespace shardwise::virtual_ranks
