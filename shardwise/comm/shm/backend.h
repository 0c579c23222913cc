// The shared-memory collectives behind c10d's interface, so that torch programs can use them too.
//
// Synchronous but for receives: every call returns when its work is done, and throws where it cannot be. A
// receive is posted, and done when it is waited for. What is not overridden here throws c10d's error, which
// names backend and operation.
#pragma once
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// CPU tensors of any strides. Reductions: all but PREMUL_SUM. List forms, scatter, gather and all-to-all
/// take pieces of any sizes, those that a sender and its receiver agree about. Errors: c10::ValueError for
/// arguments, base::CommError for peers, different sizes among them. What one rank alone can see wrong (lists
/// and splits of scatter, gather and all-to-all) is a ValueError there and breaks the group, as the others
/// wait for it already.
class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit Backend(std::shared_ptr<Transport> transport)
      : c10d::Backend(transport->rank(), transport->size()), transport_(std::move(transport)) {}

  const std::string getBackendName() const override { return "shardwise"; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// The result is the root's; the other ranks' tensors stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override;
  /// Done when the call returns, which is before the receiver has come.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  /// Receives of one source and tag get its messages in the order in which they were posted.
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) override;

  void setSequenceNumberForGroup() override {}  // all ranks start from 0
  uint64_t getSequenceNumberForGroup() override { return transport_->sequence(); }
  void abort() override { transport_->abort("c10d abort"); }
  void shutdown() override { transport_->leave(); }

 private:
  void gather_base(at::Tensor& output, const at::Tensor& input);
  void scatter_base(at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);

  /// For what the others cannot see.
  template <class Check>
  void check_or_abort(const Check& check) const;

  std::shared_ptr<Transport> transport_;
};

}  // namespace shardwise::comm::shm
