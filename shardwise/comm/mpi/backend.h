// MPI's collectives behind c10d's interface, flat or by host.
//
// Synchronous but for receives: every other call returns when its work is done, and throws where it cannot
// be. What is not overridden here throws c10d's error, which names backend and operation.
#pragma once
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/breakable.h"
#include "shardwise/comm/mpi/messages.h"
#include "shardwise/comm/mpi/transport.h"

namespace shardwise::comm::mpi {

/// CPU tensors of any strides; all that comm/shm's backend does but the monitored barrier, with the same
/// errors: c10::ValueError for arguments, base::CommError for peers, different sizes among them. What one
/// rank alone can see wrong (lists and splits of scatter, gather and all-to-all) is a ValueError there and
/// breaks the group, as the others wait for it already.
class Backend final : public c10d::Backend, public Breakable {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `collectives` does what is not a matter of two ranks alone; null: `flat` does.
  explicit Backend(std::shared_ptr<Transport> flat, std::shared_ptr<Collectives> collectives = nullptr);

  const std::string getBackendName() const override { return "shardwise_mpi"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// The result is the root's; the other ranks' tensors stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) override;
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
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void setSequenceNumberForGroup() override {}  // all ranks start from 0
  uint64_t getSequenceNumberForGroup() override { return flat_->channel()->sequence(); }
  void abort() override { abort("c10d abort"); }
  void abort(const std::string& reason) override { collectives_->abort(reason); }
  void shutdown() override { collectives_->leave(); }

 private:
  void gather_base(at::Tensor& output, const at::Tensor& input);
  void scatter_base(at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);
  WorkPtr exchange(c10d::OpType op, Tensors& outputs, const Tensors& inputs);
  /// For what the others cannot see.
  template <class Check>
  void check_or_abort(const Check& check);

  std::shared_ptr<Transport> flat_;
  std::shared_ptr<Collectives> collectives_;
  Messages messages_;
};

}  // namespace shardwise::comm::mpi
