// Group's collectives: each checks its arguments, counts the call, and calls the symmetric heap or c10d.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "shardwise/comm/c10d_reduction.h"
#include "shardwise/comm/checks.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"

namespace shardwise::comm {
namespace {

std::vector<at::Tensor> even_pieces(const at::Tensor& x, int size) {
  std::vector<at::Tensor> pieces;
  const int64_t rows = x.size(0) / size;
  for (int rank = 0; rank < size; ++rank) pieces.push_back(x.narrow(0, rank * rows, rows));
  return pieces;
}

int64_t bytes_of(const at::Tensor& x) {
  return int64_t(x.nbytes());
}

}  // namespace

void Group::broadcast_(at::Tensor& x, int root) const {
  check_root("broadcast", root, size());
  if (size() == 1) return;
  const Counted counted(*state_->counters, state_->heap.get(), Op::broadcast,
                        rank() == root ? bytes_of(x) * (size() - 1) : 0);
  // NCCL accepts contiguous tensors only.
  std::vector<at::Tensor> tensors = {x.is_cpu() ? x : x.contiguous()};
  state_->backend->broadcast(tensors, {.rootRank = root})->wait();
  if (!tensors[0].is_same(x)) x.copy_(tensors[0]);
}

at::Tensor Group::all_gather(const at::Tensor& shard, const base::Split& split, int64_t dim) const {
  dim = check_shard("all_gather", shard, split, dim, rank(), size());
  if (size() == 1) return shard;
  const Counted counted(*state_->counters, state_->heap.get(), Op::all_gather,
                        bytes_of(shard) * (size() - 1));
  at::Tensor full = empty_with_size(shard, dim, split.size());
  if (SymmetricHeap* symmetric = state_->symmetric_heap()) {
    symmetric->all_gather_out(full, shard, split, dim);
    return full;
  }
  c10d_all_gather(*state_->backend, full, shard, split, dim);
  return full;
}

at::Tensor Group::all_reduce(const at::Tensor& x, Reduce reduce) const {
  if (size() == 1) return x;
  at::Tensor result =
      x.device() == device() ? empty(x.sizes(), x.scalar_type()) : at::empty(x.sizes(), x.options());
  {
    const Timed timed(*state_->counters, state_->heap.get());
    const c10::NoGradGuard no_grad;
    result.copy_(x);
    if (state_->symmetric_heap()) (*state_->counters)[Op::all_reduce].copied_bytes += bytes_of(x);
  }
  all_reduce_(result, reduce);
  return result;
}

void Group::all_reduce_(at::Tensor& x, Reduce reduce) const {
  if (size() == 1) return;
  const Counted counted(*state_->counters, state_->heap.get(), Op::all_reduce,
                        all_reduce_bytes(x, rank(), size()));
  if (SymmetricHeap* symmetric = state_->symmetric_heap()) return symmetric->all_reduce_(x, reduce);
  std::vector<at::Tensor> tensors = {x.contiguous()};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(reduce);
  state_->backend->allreduce(tensors, options)->wait();
  if (!x.is_contiguous()) x.copy_(tensors[0]);
}

at::Tensor Group::reduce_scatter(const at::Tensor& x, const base::Split& split, int64_t dim) const {
  dim = check_full("reduce_scatter", x, split, dim, size());
  if (size() == 1) return x;
  at::Tensor out = empty_with_size(x, dim, split.range(rank()).size());
  reduce_scatter_into(out, x, split, dim, InputReuse::overwritable_on_return);
  return out;
}

void Group::reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split) const {
  check_full("reduce_scatter", x, split, /*dim=*/0, size());
  check_shard("reduce_scatter", out, split, /*dim=*/0, rank(), size());
  check_output("reduce_scatter", out, x);
  if (size() == 1) {
    out.copy_(x);
  } else {
    reduce_scatter_into(out, x, split, /*dim=*/0, InputReuse::free_only);
  }
}

void Group::reduce_scatter_into(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                                InputReuse reuse) const {
  const Counted counted(*state_->counters, state_->heap.get(), Op::reduce_scatter,
                        bytes_of(x) - bytes_of(out));
  if (SymmetricHeap* symmetric = state_->symmetric_heap())
    return symmetric->reduce_scatter_out(out, x, split, dim, reuse);
  c10d_reduce_scatter(*state_->backend, out, x, split, dim);
}

void Group::fused_all_reduce(const at::Tensor& x, PeerBufferKernel kernel) const {
  run_on_peer_buffers(Op::fused_all_reduce, x, nullptr, kernel);
}

void Group::fused_reduce_scatter(const at::Tensor& x, const base::Split& split,
                                 PeerBufferKernel kernel) const {
  check_full("fused_reduce_scatter", x, split, /*dim=*/0, size());
  run_on_peer_buffers(Op::fused_reduce_scatter, x, &split, kernel);
}

void Group::run_on_peer_buffers(Op op, const at::Tensor& x, const base::Split* split,
                                PeerBufferKernel kernel) const {
  if (size() == 1) {
    TORCH_CHECK_VALUE(x.is_cpu(), name(op), ": needs a tensor on the CPU; got ", x.toString());
    const at::Tensor partial = x.contiguous();
    const void* const only = partial.const_data_ptr();
    return kernel({&only, 1});
  }
  SymmetricHeap* symmetric = state_->symmetric_heap();
  TORCH_CHECK_VALUE(symmetric != nullptr, name(op),
                    ": needs a group with a symmetric heap; call the unfused collective instead");
  const int64_t sent = split ? reduce_scatter_bytes(x, *split, rank()) : all_reduce_bytes(x, rank(), size());
  const Counted counted(*state_->counters, symmetric, op, sent);
  symmetric->run_on_peer_buffers(x, split, kernel);
}

at::Tensor Group::scatter(const at::Tensor& x, int root) const {
  check_root("scatter", root, size());
  check_divisible("scatter", x, size());
  if (size() == 1) return x;
  const int64_t shard = bytes_of(x) / size();
  const Counted counted(*state_->counters, state_->heap.get(), Op::scatter,
                        rank() == root ? bytes_of(x) - shard : 0);
  std::vector<at::Tensor> outputs = {empty_with_size(x, 0, x.size(0) / size())};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == root) inputs.push_back(even_pieces(x.contiguous(), size()));
  state_->backend->scatter(outputs, inputs, {.rootRank = root})->wait();
  return outputs[0];
}

at::Tensor Group::gather(const at::Tensor& shard, int root) const {
  check_root("gather", root, size());
  TORCH_CHECK_VALUE(shard.dim() >= 1, "gather: needs a dim 0; got a scalar");
  if (size() == 1) return shard;
  const Counted counted(*state_->counters, state_->heap.get(), Op::gather,
                        rank() == root ? 0 : bytes_of(shard));
  std::vector<at::Tensor> inputs = {shard.contiguous()};
  std::vector<std::vector<at::Tensor>> outputs;
  at::Tensor full;
  if (rank() == root) {
    full = empty_with_size(shard, 0, shard.size(0) * size());
    outputs.push_back(even_pieces(full, size()));
  }
  state_->backend->gather(outputs, inputs, {.rootRank = root})->wait();
  return full;
}

at::Tensor Group::all_to_all(const at::Tensor& x) const {
  check_divisible("all_to_all", x, size());
  if (size() == 1) return x;
  const Counted counted(*state_->counters, state_->heap.get(), Op::all_to_all,
                        bytes_of(x) - bytes_of(x) / size());
  at::Tensor input = x.contiguous(), output = at::empty(x.sizes(), x.options());
  std::vector<int64_t> even;
  state_->backend->alltoall_base(output, input, even, even)->wait();
  return output;
}

void Group::barrier() const {
  if (size() == 1) return;
  const Counted counted(*state_->counters, state_->heap.get(), Op::barrier, 0);
  state_->backend->barrier()->wait();
}

}  // namespace shardwise::comm
