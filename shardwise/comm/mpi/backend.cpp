#include "shardwise/comm/mpi/backend.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/work.h"

namespace shardwise::comm::mpi {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = Backend::Tensors;

Reduce reduce_of(const ReduceOp& op, const char* name) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return Reduce::sum;
    case ReduceOp::AVG:
      return Reduce::average;
    case ReduceOp::PRODUCT:
      return Reduce::product;
    case ReduceOp::MIN:
      return Reduce::min;
    case ReduceOp::MAX:
      return Reduce::max;
    case ReduceOp::BAND:
      return Reduce::bit_and;
    case ReduceOp::BOR:
      return Reduce::bit_or;
    case ReduceOp::BXOR:
      return Reduce::bit_xor;
    default:
      TORCH_CHECK_VALUE(false, name, ": backend shardwise_mpi has no such reduction; got c10d operation ",
                        int(op.op_));
  }
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

void check_same_numel(const at::Tensor& a, const at::Tensor& b, const char* rule) {
  TORCH_CHECK_VALUE(a.numel() == b.numel(), rule, "; got ", a.numel(), " and ", b.numel(), " elements");
}

/// The dense `large`, one part as `small` per rank.
Tensors parts_of(const at::Tensor& large, const at::Tensor& small, int size, const char* name) {
  TORCH_CHECK_VALUE(large.is_cpu() && small.is_cpu() && large.scalar_type() == small.scalar_type() &&
                        large.numel() == small.numel() * size,
                    name, ": one side must hold one piece per rank; got ", large.numel(), " and ",
                    small.numel(), " elements for ", size, " ranks");
  Tensors parts = cut_evenly(large.view({-1}), size);
  for (at::Tensor& part : parts) part = part.view(small.sizes());
  return parts;
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

/// The rows of each rank: as `splits` say, even when they say nothing.
Tensors row_blocks(const at::Tensor& x, const std::vector<int64_t>& splits, int size) {
  const int64_t rows = x.dim() == 0 ? -1 : x.size(0);
  const bool deals_all = splits.empty()
                             ? rows >= 0 && rows % size == 0
                             : int(splits.size()) == size && *std::ranges::min_element(splits) >= 0 &&
                                   std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows;
  TORCH_CHECK_VALUE(deals_all, "alltoall_base: splits must deal dim 0 to ", size, " ranks; got ",
                    at::IntArrayRef(splits), " for ", x.sizes());
  Tensors blocks;
  for (int64_t peer = 0, begin = 0; peer < size; ++peer) {
    blocks.push_back(x.narrow(0, begin, splits.empty() ? rows / size : splits[size_t(peer)]));
    begin += blocks.back().size(0);
  }
  return blocks;
}

Backend::WorkPtr done(int rank, OpType op, Tensors results) {
  return c10::make_intrusive<shm::DoneWork>(rank, op, std::move(results));
}

}  // namespace

Backend::Backend(std::shared_ptr<Transport> flat, std::shared_ptr<Collectives> collectives)
    : c10d::Backend(flat->rank(), flat->size()),
      flat_(std::move(flat)),
      collectives_(collectives ? std::move(collectives) : flat_),
      messages_(flat_->channel()) {}

template <class Check>
void Backend::check_or_abort(const Check& check) {
  try {
    check();
  } catch (const c10::ValueError& error) {
    abort(base::one_line(error));
    throw;
  }
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const c10::NoGradGuard no_grad;
  collectives_->broadcast_(single(tensors, "broadcast"), int(options.rootRank));
  return done(rank_, OpType::BROADCAST, tensors);
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const c10::NoGradGuard no_grad;
  collectives_->all_reduce_(single(tensors, "allreduce"), reduce_of(options.reduceOp, "allreduce"));
  return done(rank_, OpType::ALLREDUCE, tensors);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  const c10::NoGradGuard no_grad;
  const Reduce reduce = reduce_of(options.reduceOp, "allreduce_coalesced");
  for (at::Tensor& tensor : tensors) collectives_->all_reduce_(tensor, reduce);
  return done(rank_, OpType::ALLREDUCE_COALESCED, tensors);
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
  flat_->reduce_scatter(out, pieces, reduce_of(options.reduceOp, "reduce"));
  return done(rank_, OpType::REDUCE, tensors);
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions&) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& input = single(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "allgather: takes one list of outputs; got ", outputs.size());
  check_pieces(outputs[0], input, size_, "allgather");
  check_same_numel(input, outputs[0][size_t(rank_)], "allgather: input and own output must be as large");
  collectives_->all_gather(outputs[0], input);
  return done(rank_, OpType::ALLGATHER, outputs[0]);
}

void Backend::gather_base(at::Tensor& output, const at::Tensor& input) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(output.is_contiguous(), "allgather_into_tensor: output must be contiguous; got strides ",
                    output.strides());
  Tensors pieces = parts_of(output, input, size_, "allgather_into_tensor");
  collectives_->all_gather(pieces, input);
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
  const c10::NoGradGuard no_grad;
  at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "reduce_scatter: takes one list of inputs; got ", inputs.size());
  check_pieces(inputs[0], output, size_, "reduce_scatter");
  check_same_numel(output, inputs[0][size_t(rank_)], "reduce_scatter: output and own input must be as large");
  collectives_->reduce_scatter(output, inputs[0], reduce_of(options.reduceOp, "reduce_scatter"));
  return done(rank_, OpType::REDUCE_SCATTER, outputs);
}

void Backend::scatter_base(at::Tensor& output, const at::Tensor& input, const ReduceOp& op) {
  const c10::NoGradGuard no_grad;
  const Tensors pieces = parts_of(input.contiguous(), output, size_, "reduce_scatter_tensor");
  collectives_->reduce_scatter(output, pieces, reduce_of(op, "reduce_scatter_tensor"));
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
  const c10::NoGradGuard no_grad;
  at::Tensor& output = single(outputs, "scatter");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(inputs.size(), is_root, "scatter: takes one list of inputs"); });
  if (is_root)
    check_or_abort([&] {
      check_pieces(inputs[0], output, size_, "scatter");
      check_same_numel(inputs[0][size_t(rank_)], output,
                       "scatter: the root's output must be as large as its piece");
    });
  flat_->scatter(output, is_root ? inputs[0] : Tensors(), int(options.rootRank));
  return done(rank_, OpType::SCATTER, outputs);
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& input = single(inputs, "gather");
  const bool is_root = options.rootRank == rank_;
  check_or_abort([&] { check_lists(outputs.size(), is_root, "gather: takes one list of outputs"); });
  Tensors none;
  Tensors& pieces = is_root ? outputs[0] : none;
  if (is_root)
    check_or_abort([&] {
      check_pieces(pieces, input, size_, "gather");
      check_same_numel(pieces[size_t(rank_)], input,
                       "gather: the root's input must be as large as its piece");
    });
  flat_->gather(pieces, input, int(options.rootRank));
  return done(rank_, OpType::GATHER, pieces);
}

Backend::WorkPtr Backend::exchange(OpType op, Tensors& outputs, const Tensors& inputs) {
  const char* const name = op == OpType::ALLTOALL ? "alltoall" : "alltoall_base";
  check_or_abort([&] {
    TORCH_CHECK_VALUE(int(inputs.size()) == size_, name, ": takes one input per rank; got ", inputs.size());
    check_pieces(inputs, inputs[0], size_, name);
    check_pieces(outputs, inputs[0], size_, name);
    check_same_numel(inputs[size_t(rank_)], outputs[size_t(rank_)],
                     "alltoall: what a rank sends itself must be as large on both sides");
  });
  flat_->all_to_all(outputs, inputs);
  return done(rank_, op, outputs);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  const c10::NoGradGuard no_grad;
  Tensors outputs, inputs;
  check_or_abort([&] {
    outputs = row_blocks(output, output_splits, size_);
    inputs = row_blocks(input, input_splits, size_);
  });
  exchange(OpType::ALLTOALL_BASE, outputs, inputs);
  return done(rank_, OpType::ALLTOALL_BASE, {output});
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  const c10::NoGradGuard no_grad;
  return exchange(OpType::ALLTOALL, outputs, inputs);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions&) {
  flat_->barrier();
  return done(rank_, OpType::BARRIER, {});
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(tensors, "send");
  check_rank(peer, size_, "send");
  return messages_.send(tensor, peer, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(tensors, "recv");
  check_rank(peer, size_, "recv");
  return messages_.receive(tensor, peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return messages_.receive(single(tensors, "recv_anysource"), Messages::kAnySource, tag);
}

}  // namespace shardwise::comm::mpi
