#include "shardwise/comm/c10d_backend.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "shardwise/base/error.h"
#include "shardwise/base/mutation.h"
#include "shardwise/comm/c10d_reduction.h"
#include "shardwise/comm/done_work.h"

namespace shardwise::comm {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = Backend::Tensors;

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

void check_rank(int peer, int size, const char* name) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size, name, ": rank must be in [0, ", size, "); got ", peer);
}

/// How many rows of `x` are each rank's: as `splits` say, even when they say nothing.
std::vector<int64_t> rows_of(const at::Tensor& x, const std::vector<int64_t>& splits, int size) {
  const int64_t rows = x.dim() == 0 ? -1 : x.size(0);
  const bool deals_all = splits.empty()
                             ? rows >= 0 && rows % size == 0
                             : int(splits.size()) == size && *std::ranges::min_element(splits) >= 0 &&
                                   std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows;
  TORCH_CHECK_VALUE(deals_all, "alltoall_base: splits must deal dim 0 to ", size, " ranks; got ",
                    at::IntArrayRef(splits), " for ", x.sizes());
  return splits.empty() ? std::vector<int64_t>(size_t(size), rows / size) : splits;
}

}  // namespace

Reduce Backend::reduction(const ReduceOp& op, const char* call) const {
  return from_c10d(op, getBackendName(), call);
}

Backend::WorkPtr Backend::done(OpType op, Tensors results) const {
  return c10::make_intrusive<DoneWork>(rank_, op, std::move(results));
}

template <class Check>
void Backend::check_or_abort(const Check& check) const {
  try {
    check();
  } catch (const c10::ValueError& error) {
    forms_->abort(base::one_line(error));
    throw;
  }
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const c10::NoGradGuard no_grad;
  forms_->broadcast_(single(tensors, "broadcast"), int(options.rootRank));
  return done(OpType::BROADCAST, tensors);
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const c10::NoGradGuard no_grad;
  forms_->all_reduce_(single(tensors, "allreduce"), reduction(options.reduceOp, "allreduce"));
  return done(OpType::ALLREDUCE, tensors);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  const c10::NoGradGuard no_grad;
  const Reduce reduce = reduction(options.reduceOp, "allreduce_coalesced");
  for (at::Tensor& tensor : tensors) {
    forms_->all_reduce_(tensor, reduce);
    if (base::mutated(base::Mutation::coalesce_first_only)) break;
  }
  return done(OpType::ALLREDUCE_COALESCED, tensors);
}

// As a scattered sum of which the root's piece is all.
Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const c10::NoGradGuard no_grad;
  at::Tensor& x = single(tensors, "reduce");
  check_rank(int(options.rootRank), size_, "reduce");
  at::Tensor nothing = at::empty({0}, x.options());
  Tensors pieces(size_t(size_), nothing);
  pieces[size_t(options.rootRank)] = x;
  at::Tensor& out = options.rootRank == rank_ ? x : nothing;
  forms_->reduce_scatter(out, pieces, reduction(options.reduceOp, "reduce"));
  return done(OpType::REDUCE, tensors);
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions&) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& input = single(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "allgather: takes one list of outputs; got ", outputs.size());
  check_pieces(outputs[0], input, size_, "allgather");
  TORCH_CHECK_VALUE(outputs[0][size_t(rank_)].numel() == input.numel(),
                    "allgather: input and own output differ; got ", input.numel(), " and ",
                    outputs[0][size_t(rank_)].numel(), " elements");
  forms_->all_gather(outputs[0], input);
  return done(OpType::ALLGATHER, outputs[0]);
}

void Backend::gather_base(at::Tensor& output, const at::Tensor& input) {
  const c10::NoGradGuard no_grad;
  check_ratio(output, input, size_, "allgather_into_tensor");
  TORCH_CHECK_VALUE(output.is_contiguous(), "allgather_into_tensor: output must be contiguous");
  const at::Tensor flat = output.view({-1});
  Tensors pieces;
  for (int peer = 0; peer < size_; ++peer) {
    pieces.push_back(flat.narrow(0, peer * input.numel(), input.numel()).view(input.sizes()));
  }
  forms_->all_gather(pieces, input);
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions&) {
  gather_base(output, input);
  return done(OpType::_ALLGATHER_BASE, {output});
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions&) {
  check_pairs(outputs, inputs, "allgather_into_tensor_coalesced");
  for (size_t i = 0; i < outputs.size(); ++i) gather_base(outputs[i], inputs[i]);
  return done(OpType::COALESCED, outputs);
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  const c10::NoGradGuard no_grad;
  at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "reduce_scatter: takes one list of inputs; got ", inputs.size());
  check_pieces(inputs[0], output, size_, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][size_t(rank_)].numel() == output.numel(),
                    "reduce_scatter: output and own input differ; got ", output.numel(), " and ",
                    inputs[0][size_t(rank_)].numel(), " elements");
  forms_->reduce_scatter(output, inputs[0], reduction(options.reduceOp, "reduce_scatter"));
  return done(OpType::REDUCE_SCATTER, outputs);
}

void Backend::scatter_base(at::Tensor& output, const at::Tensor& input, const ReduceOp& op) {
  const c10::NoGradGuard no_grad;
  check_ratio(input, output, size_, "reduce_scatter_tensor");
  forms_->reduce_scatter_even(output, input, reduction(op, "reduce_scatter_tensor"));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  scatter_base(output, input, options.reduceOp);
  return done(OpType::_REDUCE_SCATTER_BASE, {output});
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  check_pairs(outputs, inputs, "reduce_scatter_tensor_coalesced");
  for (size_t i = 0; i < outputs.size(); ++i) scatter_base(outputs[i], inputs[i], options.reduceOp);
  return done(OpType::COALESCED, outputs);
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  const c10::NoGradGuard no_grad;
  at::Tensor& output = single(outputs, "scatter");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(inputs.size(), is_root, "scatter: takes one list of inputs"); });
  if (is_root) check_or_abort([&] { check_pieces(inputs[0], output, size_, "scatter"); });
  forms_->scatter(output, is_root ? inputs[0] : Tensors(), int(options.rootRank));
  return done(OpType::SCATTER, outputs);
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& input = single(inputs, "gather");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(outputs.size(), is_root, "gather: takes one list of outputs"); });
  Tensors none;
  Tensors& pieces = is_root ? outputs[0] : none;
  if (is_root) check_or_abort([&] { check_pieces(pieces, input, size_, "gather"); });
  forms_->gather(pieces, input, int(options.rootRank));
  return done(OpType::GATHER, pieces);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> output_rows, input_rows;
  check_or_abort([&] {
    TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type() && output.is_cpu() && input.is_cpu(),
                      "alltoall_base: takes two CPU tensors of one dtype; got ", output.scalar_type(),
                      " and ", input.scalar_type());
    output_rows = rows_of(output, output_splits, size_);
    input_rows = rows_of(input, input_splits, size_);
  });
  forms_->all_to_all_rows(output, output_rows, input, input_rows);
  return done(OpType::ALLTOALL_BASE, {output});
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  const c10::NoGradGuard no_grad;
  check_or_abort([&] {
    TORCH_CHECK_VALUE(int(inputs.size()) == size_, "alltoall: takes one input per rank; got ", inputs.size());
    check_pieces(inputs, inputs[0], size_, "alltoall");
    check_pieces(outputs, inputs[0], size_, "alltoall");
  });
  forms_->all_to_all(outputs, inputs);
  return done(OpType::ALLTOALL, outputs);
}

Backend::WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  check_rank(to, size_, "send");
  return forms_->send(single(tensors, "send"), to, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  check_rank(from, size_, "recv");
  return forms_->receive(single(tensors, "recv"), from, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return forms_->receive(single(tensors, "recvAnysource"), kAnySource, tag);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions&) {
  forms_->barrier();
  return done(OpType::BARRIER, {});
}

}  // namespace shardwise::comm
