// A c10d::Backend over a CollectiveBackend, so that torch programs can use it too.
//
// Calls are synchronous, except receives: a call returns when its operation has completed. A receive is
// posted by the call and completed by its Work's wait. Operations that are not overridden here throw c10d's
// error, which names the backend and the operation.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// A c10d::Backend for CPU tensors of any strides.
///
/// It supports all reductions except PREMUL_SUM, and of complex tensors sums and averages. List variants,
/// scatter, gather and all-to-all accept pieces of any size on which sender and receiver agree. A timeout in
/// a call's options replaces the group's. Errors: c10::ValueError for arguments, thrown by the call;
/// base::CommError for failed peers and for sizes that differ, thrown by the call if its options have asyncOp
/// false, else by its Work. Arguments that only one rank may find invalid (the lists, sizes and splits of
/// gathers, scatters and all-to-all) throw a ValueError there and abort the group, because the other ranks
/// already wait for that rank. Any other error of one rank alone in a call, such as lack of memory, aborts it
/// too; one in the wait for a message does not, because no peer waits for it. A call while another thread's
/// is in flight, or in a fork of the process, throws a ValueError and sends nothing.
class C10dBackend : public c10d::Backend {
 public:
  using Tensors = CollectiveBackend::Tensors;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit C10dBackend(std::shared_ptr<CollectiveBackend> backend)
      : c10d::Backend(backend->rank(), backend->size()), backend_(std::move(backend)) {}

  const std::string getBackendName() const override { return backend_->backend_name(); }
  /// Returns options with the backend's name and timeout, which belong to the caller.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  /// Sets the timeout of later calls. Call it from the thread that calls collectives.
  void setTimeout(std::chrono::milliseconds timeout) override;

  /// Calls in a coalesced block run immediately; endCoalescing returns one Work for all of them. A call that
  /// throws ends the block.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// Reduces each tensor from its value before the call, also if tensors share memory.
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  /// Writes the result at the root; the other ranks' tensors are unchanged.
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  /// Writes rank r's inputs[i] into outputs[r][i].
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
  /// Completes when the call returns, possibly before the receiver posts its receive.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  /// Receives with the same source and tag match its messages in the order in which they were posted.
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}  // all ranks start from 0
  uint64_t getSequenceNumberForGroup() override { return backend_->sequence(); }
  void abort() override { abort("c10d abort"); }
  /// Aborts the group with a reason, which the peers' errors quote.
  void abort(const std::string& reason) { backend_->abort(reason); }
  void shutdown() override { backend_->leave(); }

 private:
  class BlockGuard;

  Reduce reduction(const c10d::ReduceOp& op, const char* call) const;
  /// Returns `work`, and adds it to this thread's coalesced block if one is open.
  WorkPtr recorded(WorkPtr work);
  /// Runs `call` and returns its Work. A CommError is thrown, or held by the Work if the options are async.
  template <class CallOptions, class Call>
  WorkPtr run(c10d::OpType op, const CallOptions& options, Tensors results, const Call& call);
  /// Returns the Work of `call`, or a failed one if `call` throws a CommError.
  template <class Call>
  WorkPtr run_message(c10d::OpType op, const Call& call);

  /// Runs a check of `op` that can fail on this rank alone; aborts the group if it does. Errors: those of
  /// `check`; c10::ValueError, and no abort, while another thread's call is in flight.
  template <class Check>
  void check_or_abort(c10d::OpType op, const Check& check) const;

  std::shared_ptr<CollectiveBackend> backend_;
  std::mutex coalesced_mutex_;
  std::map<std::thread::id, std::vector<WorkPtr>> coalesced_;  // the open block of each thread
};

}  // namespace shardwise::comm
