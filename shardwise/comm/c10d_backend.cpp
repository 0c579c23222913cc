#include "shardwise/comm/c10d_backend.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <exception>

#include "shardwise/base/error.h"
#include "shardwise/comm/argument_checks.h"
#include "shardwise/comm/c10d_arguments.h"
#include "shardwise/comm/c10d_tensors.h"
#include "shardwise/comm/c10d_types.h"
#include "shardwise/comm/group_guard.h"
#include "shardwise/comm/local_failure.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = C10dBackend::Tensors;

/// Replaces the group's timeout by that of a collective's options, if it has one, in this scope.
class CallTimeout {
 public:
  CallTimeout(CollectiveBackend& backend, std::chrono::milliseconds timeout)
      : backend_(has_timeout(timeout) ? &backend : nullptr) {
    if (backend_ != nullptr) backend_->limit_collectives(timeout);
  }
  ~CallTimeout() {
    if (backend_ != nullptr) backend_->limit_collectives(std::chrono::milliseconds(0));
  }
  CallTimeout(const CallTimeout&) = delete;
  CallTimeout& operator=(const CallTimeout&) = delete;

 private:
  CollectiveBackend* backend_;
};

}  // namespace

/// Drops this thread's coalesced block if a call throws in this scope: torch's context manager does not end
/// the block after an error, and a block retains the tensors of all later calls.
class C10dBackend::BlockGuard {
 public:
  explicit BlockGuard(C10dBackend& backend) : backend_(backend) {}
  ~BlockGuard() {
    if (std::uncaught_exceptions() == exceptions_before_) return;
    const std::lock_guard lock(backend_.coalesced_mutex_);
    backend_.coalesced_.erase(std::this_thread::get_id());
  }
  BlockGuard(const BlockGuard&) = delete;
  BlockGuard& operator=(const BlockGuard&) = delete;

 private:
  C10dBackend& backend_;
  int exceptions_before_ = std::uncaught_exceptions();
};

Reduce C10dBackend::reduction(const ReduceOp& op, const char* call) const {
  return from_c10d(op, getBackendName(), call);
}

c10::intrusive_ptr<c10d::Backend::Options> C10dBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(getBackendName(), backend_->timeout());
  options->group_name = getGroupUid();
  return options;
}

void C10dBackend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "set_timeout: a timeout must be above 0 ms; got ", timeout.count(),
                    " [SW0481]");
  backend_->set_timeout(timeout);
}

void C10dBackend::startCoalescing() {
  const std::lock_guard lock(coalesced_mutex_);
  coalesced_[std::this_thread::get_id()].clear();  // the program's own error may have left a block open
}

C10dBackend::WorkPtr C10dBackend::endCoalescing() {
  std::unique_lock lock(coalesced_mutex_);
  auto block = coalesced_.extract(std::this_thread::get_id());
  lock.unlock();
  TORCH_CHECK_VALUE(block, "end_coalescing: start_coalescing must come first; got no open block [SW0482]");
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(block.mapped()));
}

C10dBackend::WorkPtr C10dBackend::recorded(WorkPtr work) {
  const std::lock_guard lock(coalesced_mutex_);
  const auto block = coalesced_.find(std::this_thread::get_id());
  if (block != coalesced_.end()) block->second.push_back(work);
  return work;
}

template <class CallOptions, class Call>
C10dBackend::WorkPtr C10dBackend::run(OpType op, const CallOptions& options, Tensors results,
                                      const Call& call) {
  const c10::NoGradGuard no_grad;
  const GroupGuard::Call in_flight(backend_->guard(), call_name(op));
  const CallTimeout limit(*backend_, options.timeout);
  try {
    abort_if_failing(*backend_, call);
  } catch (const base::CommError&) {
    if (!options.asyncOp) throw;
    return recorded(c10::make_intrusive<DoneWork>(rank_, op, std::current_exception()));
  }
  return recorded(c10::make_intrusive<DoneWork>(rank_, op, std::move(results)));
}

template <class Call>
C10dBackend::WorkPtr C10dBackend::run_message(OpType op, const Call& call) {
  const GroupGuard::Call in_flight(backend_->guard(), call_name(op));
  try {
    return recorded(abort_if_failing(*backend_, call));
  } catch (const base::CommError&) {
    return recorded(c10::make_intrusive<DoneWork>(rank_, op, std::current_exception()));
  }
}

template <class Check>
void C10dBackend::check_or_abort(OpType op, const Check& check) const {
  const GroupGuard::Call in_flight(backend_->guard(), call_name(op));
  try {
    check();
  } catch (const c10::ValueError& error) {
    backend_->abort(base::one_line(error));
    throw;
  }
}

C10dBackend::WorkPtr C10dBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const BlockGuard block(*this);
  at::Tensor& x = single(tensors, "broadcast");
  check_root(options.rootRank, options.rootTensor, size_, "broadcast");
  return run(OpType::BROADCAST, options, tensors, [&] { backend_->broadcast_(x, int(options.rootRank)); });
}

C10dBackend::WorkPtr C10dBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const BlockGuard block(*this);
  at::Tensor& x = single(tensors, "allreduce");
  const Reduce reduce = reduction(options.reduceOp, "allreduce");
  at::Tensor real = as_real(x, reduce, "allreduce");
  return run(OpType::ALLREDUCE, options, tensors, [&] { backend_->all_reduce_(real, reduce); });
}

C10dBackend::WorkPtr C10dBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& options) {
  const BlockGuard block(*this);
  check_dense(tensors, "allreduce_coalesced");
  const Reduce reduce = reduction(options.reduceOp, "allreduce_coalesced");
  Tensors real = as_real(tensors, reduce, "allreduce_coalesced");
  return run(OpType::ALLREDUCE_COALESCED, options, tensors, [&] {
    Tensors terms = without_overlap(real);
    for (at::Tensor& term : terms) backend_->all_reduce_(term, reduce);
    copy_back(real, terms);
  });
}

// Runs a reduce_scatter whose pieces are empty except the root's.
C10dBackend::WorkPtr C10dBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const BlockGuard block(*this);
  at::Tensor& x = single(tensors, "reduce");
  check_root(options.rootRank, options.rootTensor, size_, "reduce");
  const Reduce reduce = reduction(options.reduceOp, "reduce");
  at::Tensor real = as_real(x, reduce, "reduce"), nothing = at::empty({0}, real.options());
  Tensors pieces(size_t(size_), nothing);
  pieces[size_t(options.rootRank)] = real;
  at::Tensor& out = options.rootRank == rank_ ? real : nothing;
  return run(OpType::REDUCE, options, tensors, [&] { backend_->reduce_scatter(out, pieces, reduce); });
}

C10dBackend::WorkPtr C10dBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  const BlockGuard block(*this);
  const at::Tensor& input = single(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "allgather: accepts one list of outputs; got ", outputs.size(),
                    " [SW0483]");
  check_or_abort(OpType::ALLGATHER, [&] { check_gathered(outputs[0], input, rank_, size_, "allgather"); });
  return run(OpType::ALLGATHER, options, outputs[0], [&] { backend_->all_gather(outputs[0], input); });
}

C10dBackend::WorkPtr C10dBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const BlockGuard block(*this);
  std::vector<Tensors> by_input;
  check_or_abort(OpType::ALLGATHER_COALESCED, [&] {
    by_input = transposed(outputs, inputs.size(), "allgather_coalesced");
    for (size_t i = 0; i < inputs.size(); ++i)
      check_gathered(by_input[i], inputs[i], rank_, size_, "allgather_coalesced");
  });
  return run(OpType::ALLGATHER_COALESCED, options, joined(outputs), [&] {
    for (size_t i = 0; i < inputs.size(); ++i) backend_->all_gather(by_input[i], inputs[i]);
  });
}

C10dBackend::WorkPtr C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  const BlockGuard block(*this);
  check_or_abort(OpType::_ALLGATHER_BASE, [&] { check_base(output, input, size_, "allgather_into_tensor"); });
  return run(OpType::_ALLGATHER_BASE, options, {output}, [&] { backend_->all_gather_even(output, input); });
}

C10dBackend::WorkPtr C10dBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  const BlockGuard block(*this);
  check_or_abort(OpType::COALESCED, [&] {
    check_pairs(outputs, inputs, "allgather_into_tensor_coalesced");
    for (size_t i = 0; i < outputs.size(); ++i)
      check_base(outputs[i], inputs[i], size_, "allgather_into_tensor_coalesced");
  });
  return run(OpType::COALESCED, options, outputs, [&] {
    for (size_t i = 0; i < outputs.size(); ++i) backend_->all_gather_even(outputs[i], inputs[i]);
  });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const BlockGuard block(*this);
  at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "reduce_scatter: accepts one list of inputs; got ", inputs.size(),
                    " [SW0484]");
  check_or_abort(OpType::REDUCE_SCATTER, [&] {
    check_pieces(inputs[0], output, size_, "reduce_scatter");
    TORCH_CHECK_VALUE(inputs[0][size_t(rank_)].sizes() == output.sizes(),
                      "reduce_scatter: output and this rank's input must have the same shape; got ",
                      output.sizes(), " and ", inputs[0][size_t(rank_)].sizes(), " [SW0485]");
  });
  const Reduce reduce = reduction(options.reduceOp, "reduce_scatter");
  at::Tensor out = as_real(output, reduce, "reduce_scatter");
  const Tensors pieces = as_real(inputs[0], reduce, "reduce_scatter");
  return run(OpType::REDUCE_SCATTER, options, outputs,
             [&] { backend_->reduce_scatter(out, pieces, reduce); });
}

C10dBackend::WorkPtr C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  const BlockGuard block(*this);
  check_or_abort(OpType::_REDUCE_SCATTER_BASE,
                 [&] { check_ratio(input, output, size_, "reduce_scatter_tensor"); });
  const Reduce reduce = reduction(options.reduceOp, "reduce_scatter_tensor");
  at::Tensor out = as_real(output, reduce, "reduce_scatter_tensor");
  const at::Tensor x = as_real(input, reduce, "reduce_scatter_tensor");
  return run(OpType::_REDUCE_SCATTER_BASE, options, {output},
             [&] { backend_->reduce_scatter_even(out, x, reduce); });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  const BlockGuard block(*this);
  check_or_abort(OpType::COALESCED, [&] {
    check_pairs(outputs, inputs, "reduce_scatter_tensor_coalesced");
    for (size_t i = 0; i < outputs.size(); ++i)
      check_ratio(inputs[i], outputs[i], size_, "reduce_scatter_tensor_coalesced");
  });
  const Reduce reduce = reduction(options.reduceOp, "reduce_scatter_tensor_coalesced");
  Tensors outs = as_real(outputs, reduce, "reduce_scatter_tensor_coalesced");
  const Tensors xs = as_real(inputs, reduce, "reduce_scatter_tensor_coalesced");
  return run(OpType::COALESCED, options, outputs, [&] {
    for (size_t i = 0; i < outs.size(); ++i) backend_->reduce_scatter_even(outs[i], xs[i], reduce);
  });
}

C10dBackend::WorkPtr C10dBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  const BlockGuard block(*this);
  at::Tensor& output = single(outputs, "scatter");
  check_rank(options.rootRank, size_, "scatter");
  const bool is_root = options.rootRank == rank_;
  check_or_abort(OpType::SCATTER, [&] {
    check_lists(inputs.size(), is_root, "scatter");
    if (!is_root) return;
    check_pieces(inputs[0], output, size_, "scatter");
    check_own(inputs[0][size_t(rank_)], output, "scatter");
  });
  return run(OpType::SCATTER, options, outputs,
             [&] { backend_->scatter(output, is_root ? inputs[0] : Tensors(), int(options.rootRank)); });
}

C10dBackend::WorkPtr C10dBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const BlockGuard block(*this);
  const at::Tensor& input = single(inputs, "gather");
  check_rank(options.rootRank, size_, "gather");
  const bool is_root = options.rootRank == rank_;
  check_or_abort(OpType::GATHER, [&] {
    check_lists(outputs.size(), is_root, "gather");
    if (is_root) check_gathered(outputs[0], input, rank_, size_, "gather");
  });
  Tensors none;
  Tensors& pieces = is_root ? outputs[0] : none;
  return run(OpType::GATHER, options, pieces,
             [&] { backend_->gather(pieces, input, int(options.rootRank)); });
}

C10dBackend::WorkPtr C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  const BlockGuard block(*this);
  std::vector<int64_t> output_rows, input_rows;
  check_or_abort(OpType::ALLTOALL_BASE, [&] {
    check_dense({output, input}, "alltoall_base");
    TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                      "alltoall_base: accepts two CPU tensors of one dtype; got ", output.scalar_type(),
                      " and ", input.scalar_type(), " [SW0486]");
    output_rows = row_counts(output, output_splits, size_);
    input_rows = row_counts(input, input_splits, size_);
    check_own_rows(input, input_rows[size_t(rank_)], output, output_rows[size_t(rank_)]);
  });
  return run(OpType::ALLTOALL_BASE, options, {output}, [&] {
    // Peers read the input in place while this rank writes its output.
    const bool is_disjoint = at::get_overlap_status(output, input) == at::MemOverlapStatus::No;
    backend_->all_to_all_rows(output, output_rows, is_disjoint ? input : input.clone(), input_rows);
  });
}

C10dBackend::WorkPtr C10dBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  const BlockGuard block(*this);
  check_or_abort(OpType::ALLTOALL, [&] {
    TORCH_CHECK_VALUE(int(inputs.size()) == size_, "alltoall: accepts one input per rank; got ",
                      inputs.size(), " [SW0487]");
    check_pieces(inputs, inputs[0], size_, "alltoall");
    check_pieces(outputs, inputs[0], size_, "alltoall");
    check_own(inputs[size_t(rank_)], outputs[size_t(rank_)], "alltoall");
  });
  return run(OpType::ALLTOALL, options, outputs, [&] { backend_->all_to_all(outputs, inputs); });
}

C10dBackend::WorkPtr C10dBackend::send(Tensors& tensors, int to, int tag) {
  const BlockGuard block(*this);
  check_rank(to, size_, "send");
  const at::Tensor& x = single(tensors, "send");
  return run_message(OpType::SEND, [&] {
    backend_->send(x, to, tag);
    return c10::make_intrusive<DoneWork>(rank_, OpType::SEND, tensors);
  });
}

C10dBackend::WorkPtr C10dBackend::recv(Tensors& tensors, int from, int tag) {
  const BlockGuard block(*this);
  check_rank(from, size_, "recv");
  const at::Tensor& x = single(tensors, "recv");
  check_distinct_elements(x, "recv");
  return run_message(OpType::RECV, [&] {
    return c10::make_intrusive<ReceiveWork>(rank_, OpType::RECV, x, backend_->receive(x, from, tag));
  });
}

C10dBackend::WorkPtr C10dBackend::recvAnysource(Tensors& tensors, int tag) {
  const BlockGuard block(*this);
  const at::Tensor& x = single(tensors, "recvAnysource");
  check_distinct_elements(x, "recvAnysource");
  return run_message(OpType::RECVANYSOURCE, [&] {
    return c10::make_intrusive<ReceiveWork>(rank_, OpType::RECVANYSOURCE, x,
                                            backend_->receive(x, kAnySource, tag));
  });
}

C10dBackend::WorkPtr C10dBackend::barrier(const c10d::BarrierOptions& options) {
  const BlockGuard block(*this);
  return run(OpType::BARRIER, options, {}, [&] { backend_->barrier(); });
}

}  // namespace shardwise::comm
