// A CollectiveBackend over any c10d::Backend, such as NCCL's: the reverse of c10d_backend.h.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// The collectives of a c10d::Backend. They progress asynchronously, and the backend chooses the order of
/// sums. Tensors that are not contiguous are copied, because NCCL accepts no others. Errors: the backend's.
class C10dCollectives final : public CollectiveBackend {
 public:
  explicit C10dCollectives(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  std::string backend_name() const override { return backend_->getBackendName(); }
  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  /// Returns the device that the backend is bound to, else the CPU.
  at::Device device() const override { return backend_->getBoundDeviceId().value_or(at::kCPU); }
  bool is_synchronous() const override { return false; }
  uint64_t sequence() const override { return backend_->getSequenceNumberForGroup(); }
  std::chrono::milliseconds timeout() const override { return backend_->getBackendOptions()->timeout; }
  void set_timeout(std::chrono::milliseconds timeout) override { backend_->setTimeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { limit_ = limit; }

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void all_gather_even(at::Tensor& out, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) override;
  void barrier() override;
  void scatter(at::Tensor& out, const Tensors& pieces, int root) override;
  void gather(Tensors& pieces, const at::Tensor& shard, int root) override;
  void all_to_all(Tensors& outs, const Tensors& pieces) override;
  void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                       const std::vector<int64_t>& x_rows) override;
  std::unique_ptr<Work> start_all_reduce_(const at::Tensor& x) override;
  std::unique_ptr<Work> start_broadcast_(const at::Tensor& x, int root) override;
  std::unique_ptr<Work> start_gather(const Tensors& pieces, const at::Tensor& shard, int root) override;
  WorkPtr send(const at::Tensor& x, int to, int tag) override;
  WorkPtr receive(const at::Tensor& x, int from, int tag) override;
  /// Aborts this rank's part; c10d has no place for the reason.
  void abort(const std::string& reason) override { backend_->abort(); }
  void leave() override { backend_->shutdown(); }

 private:
  /// Returns `options` with the limit of collectives, if there is one.
  template <class Options>
  Options limited(Options options) const {
    if (limit_.count() > 0) options.timeout = limit_;
    return options;
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds limit_{0};
};

}  // namespace shardwise::comm
