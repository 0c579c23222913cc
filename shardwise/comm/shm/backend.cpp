#include "shardwise/comm/shm/backend.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/work.h"

namespace shardwise::comm::shm {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = Backend::Tensors;

Reduce reduce_of(const ReduceOp& op, const char* name) {
  TORCH_CHECK_VALUE(op.op_ == ReduceOp::SUM || op.op_ == ReduceOp::MAX, name,
                    ": backend shardwise reduces by SUM and MAX; got c10d operation ", int(op.op_));
  return op.op_ == ReduceOp::SUM ? Reduce::sum : Reduce::max;
}

at::Tensor& single(Tensors& tensors, const char* name) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_cpu(), name, ": takes one CPU tensor; got ",
                    tensors.size());
  return tensors[0];
}

void check_pieces(const Tensors& pieces, const at::Tensor& model, int size, const char* name) {
  const auto fits = [&](const at::Tensor& piece) {
    return piece.is_cpu() && piece.scalar_type() == model.scalar_type();
  };
  TORCH_CHECK_VALUE(int(pieces.size()) == size && std::all_of(pieces.begin(), pieces.end(), fits), name,
                    ": takes one CPU tensor per rank, all of one dtype; got ", pieces.size(), " for ", size,
                    " ranks");
}

void check_even(const Tensors& pieces, const at::Tensor& model, int size, const char* name) {
  check_pieces(pieces, model, size, name);
  for (const at::Tensor& piece : pieces) {
    TORCH_CHECK_VALUE(piece.numel() == model.numel(), name, ": pieces must be even; got ", piece.numel(),
                      " and ", model.numel(), " elements");
  }
}

void check_ratio(const at::Tensor& large, const at::Tensor& small, int size, const char* name) {
  TORCH_CHECK_VALUE(large.is_cpu() && small.is_cpu() && large.scalar_type() == small.scalar_type() &&
                        large.numel() == small.numel() * size,
                    name, ": one side must hold one piece per rank; got ", large.numel(), " and ",
                    small.numel(), " elements for ", size, " ranks");
}

void check_pairs(const Tensors& outputs, const Tensors& inputs, const char* name) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), name, ": as many outputs as inputs; got ",
                    outputs.size(), " and ", inputs.size());
}

void check_lists(size_t lists, bool is_root, const char* rule) {
  TORCH_CHECK_VALUE(lists == (is_root ? 1u : 0u), rule, " at the root, none elsewhere; got ", lists);
}

Backend::WorkPtr done(int rank, OpType op, Tensors results) {
  return c10::make_intrusive<DoneWork>(rank, op, std::move(results));
}

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> DoneWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(results_));
  return future;
}

template <class Check>
void Backend::check_or_abort(const Check& check) const {
  try {
    check();
  } catch (const c10::ValueError& error) {
    transport_->abort(base::one_line(error));
    throw;
  }
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return transport_->empty({int64_t(size)}, c10::typeMetaToScalarType(options.dtype()));
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  transport_->broadcast_(single(tensors, "broadcast"), int(options.rootRank));
  return done(rank_, OpType::BROADCAST, tensors);
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  transport_->all_reduce_(single(tensors, "allreduce"), reduce_of(options.reduceOp, "allreduce"));
  return done(rank_, OpType::ALLREDUCE, tensors);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  const Reduce reduce = reduce_of(options.reduceOp, "allreduce_coalesced");
  for (at::Tensor& tensor : tensors) transport_->all_reduce_(tensor, reduce);
  return done(rank_, OpType::ALLREDUCE_COALESCED, tensors);
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions&) {
  const at::Tensor& input = single(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "allgather: takes one list of outputs; got ", outputs.size());
  check_pieces(outputs[0], input, size_, "allgather");
  TORCH_CHECK_VALUE(outputs[0][size_t(rank_)].numel() == input.numel(),
                    "allgather: input and own output differ; got ", input.numel(), " and ",
                    outputs[0][size_t(rank_)].numel(), " elements");
  transport_->all_gather_pieces(outputs[0], input);
  return done(rank_, OpType::ALLGATHER, outputs[0]);
}

void Backend::gather_base(at::Tensor& output, const at::Tensor& input) {
  check_ratio(output, input, size_, "allgather_into_tensor");
  TORCH_CHECK_VALUE(output.is_contiguous(), "allgather_into_tensor: output must be contiguous");
  const at::Tensor flat = output.view({-1});
  Tensors pieces;
  for (int peer = 0; peer < size_; ++peer) {
    pieces.push_back(flat.narrow(0, peer * input.numel(), input.numel()).view(input.sizes()));
  }
  transport_->all_gather_pieces(pieces, input);
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions&) {
  gather_base(output, input);
  return done(rank_, OpType::_ALLGATHER_BASE, {output});
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions&) {
  check_pairs(outputs, inputs, "allgather_into_tensor_coalesced");
  for (size_t i = 0; i < outputs.size(); ++i) gather_base(outputs[i], inputs[i]);
  return done(rank_, OpType::COALESCED, outputs);
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "reduce_scatter: takes one list of inputs; got ", inputs.size());
  check_pieces(inputs[0], output, size_, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][size_t(rank_)].numel() == output.numel(),
                    "reduce_scatter: output and own input differ; got ", output.numel(), " and ",
                    inputs[0][size_t(rank_)].numel(), " elements");
  transport_->reduce_scatter_pieces(output, inputs[0], reduce_of(options.reduceOp, "reduce_scatter"));
  return done(rank_, OpType::REDUCE_SCATTER, outputs);
}

void Backend::scatter_base(at::Tensor& output, const at::Tensor& input, const ReduceOp& op) {
  check_ratio(input, output, size_, "reduce_scatter_tensor");
  transport_->reduce_scatter_even(output, input, reduce_of(op, "reduce_scatter_tensor"));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  scatter_base(output, input, options.reduceOp);
  return done(rank_, OpType::_REDUCE_SCATTER_BASE, {output});
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  check_pairs(outputs, inputs, "reduce_scatter_tensor_coalesced");
  for (size_t i = 0; i < outputs.size(); ++i) scatter_base(outputs[i], inputs[i], options.reduceOp);
  return done(rank_, OpType::COALESCED, outputs);
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  at::Tensor& output = single(outputs, "scatter");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(inputs.size(), is_root, "scatter: takes one list of inputs"); });
  if (is_root) check_or_abort([&] { check_even(inputs[0], output, size_, "scatter"); });
  transport_->scatter(output, is_root ? inputs[0] : Tensors(), int(options.rootRank));
  return done(rank_, OpType::SCATTER, outputs);
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const at::Tensor& input = single(inputs, "gather");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(outputs.size(), is_root, "gather: takes one list of outputs"); });
  Tensors none;
  Tensors& pieces = is_root ? outputs[0] : none;
  if (is_root) check_or_abort([&] { check_even(pieces, input, size_, "gather"); });
  transport_->gather(pieces, input, int(options.rootRank));
  return done(rank_, OpType::GATHER, pieces);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  const int64_t rows = input.dim() == 0 ? 0 : input.size(0);
  const auto even = [&](const std::vector<int64_t>& splits) {
    return std::all_of(splits.begin(), splits.end(), [&](int64_t n) { return n == rows / size_; });
  };
  TORCH_CHECK_VALUE(input.dim() > 0 && rows % size_ == 0 && even(output_splits) && even(input_splits),
                    "alltoall_base: splits must be even; got ", input.sizes(), " for ", size_, " ranks");
  TORCH_CHECK_VALUE(output.sizes() == input.sizes() && output.scalar_type() == input.scalar_type() &&
                        output.is_cpu() && input.is_cpu(),
                    "alltoall_base: output must be a CPU tensor like the input; got ", output.sizes(),
                    " and ", input.sizes());
  transport_->all_to_all_even(output, input);
  return done(rank_, OpType::ALLTOALL_BASE, {output});
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  TORCH_CHECK_VALUE(int(inputs.size()) == size_, "alltoall: takes one input per rank; got ", inputs.size());
  check_even(inputs, inputs[0], size_, "alltoall");
  check_even(outputs, inputs[0], size_, "alltoall");
  transport_->all_to_all(outputs, inputs);
  return done(rank_, OpType::ALLTOALL, outputs);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions&) {
  transport_->barrier();
  return done(rank_, OpType::BARRIER, {});
}

}  // namespace shardwise::comm::shm
