// A set of collectives (c10d_forms.h) behind c10d's interface, so that torch programs can use it too.
//
// Synchronous but for receives: every call returns when its work is over. A receive is posted, and done when
// it is waited for. What is not overridden here throws c10d's error, which names backend and operation.
#pragma once
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// CPU tensors of any strides. Reductions: all but PREMUL_SUM. List forms, scatter, gather and all-to-all
/// take pieces of any sizes, those that a sender and its receiver agree about. A call's own timeout, where it
/// has one, is that of its waits. Errors: c10::ValueError for arguments, thrown by the call; base::CommError
/// for peers, different sizes among them, thrown by the call where its options say that it is not
/// asynchronous, else by its Work. What one rank alone can see wrong (lists and splits of scatter, gather and
/// all-to-all) is a ValueError there and breaks the group, as the others wait for it already.
class Backend : public c10d::Backend {
 public:
  using Tensors = CollectiveBackend::Tensors;
  using WorkPtr = CollectiveBackend::WorkPtr;

  explicit Backend(std::shared_ptr<CollectiveBackend> forms)
      : c10d::Backend(forms->rank(), forms->size()), backend_(std::move(forms)) {}

  const std::string getBackendName() const override { return backend_->backend_name(); }
  /// The caller's own: name and timeout.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  /// Of the waits of later calls. From the thread of the collectives.
  void setTimeout(std::chrono::milliseconds timeout) override;

  /// Calls in between run as they come; the Work at the end stands for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// The result is the root's; the other ranks' tensors stay as they are.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  /// outputs[r][i] is rank r's inputs[i].
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
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
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  /// Done when the call returns, which is before the receiver has come.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  /// Receives of one source and tag get its messages in the order in which they were posted.
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  /// Whether nothing goes on by itself between a call's return and its handle's wait, but for receives.
  virtual bool is_synchronous() const { return true; }
  void setSequenceNumberForGroup() override {}  // all ranks start from 0
  uint64_t getSequenceNumberForGroup() override { return backend_->sequence(); }
  void abort() override { abort("c10d abort"); }
  /// The same, telling the peers why; c10d's own has no words.
  void abort(const std::string& reason) { backend_->abort(reason); }
  void shutdown() override { backend_->leave(); }

 private:
  Reduce reduction(const c10d::ReduceOp& op, const char* call) const;
  void gather_base(at::Tensor& output, const at::Tensor& input);
  /// Keeps it for endCoalescing where that will come.
  WorkPtr handed_out(WorkPtr work);
  /// The Work of `call`, which throws what the options do not want in the Work.
  template <class CallOptions, class Call>
  WorkPtr run(c10d::OpType op, const CallOptions& options, Tensors results, const Call& call);
  /// The Work that `call` gives, or one that has failed.
  template <class Call>
  WorkPtr run_message(c10d::OpType op, const Call& call);

  /// For what the others cannot see.
  template <class Check>
  void check_or_abort(const Check& check) const;

  std::shared_ptr<CollectiveBackend> backend_;
  std::optional<std::vector<WorkPtr>> coalesced_;  // between startCoalescing and endCoalescing
};

}  // namespace shardwise::comm
