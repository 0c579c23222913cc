// Group's collectives and messages: each checks its arguments, counts the call, and calls the symmetric heap
// or the backend.
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwise/comm/argument_checks.h"
#include "shardwise/comm/group_call.h"
#include "shardwise/comm/tensor_lists.h"

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
  check_dense_on("broadcast", x, device());
  state_->call(Op::broadcast, rank() == root ? bytes_of(x) * (size() - 1) : 0,
               [&] { state_->backend->broadcast_(x, root); });
}

at::Tensor Group::all_gather(const at::Tensor& shard, const base::Split& split, int64_t dim) const {
  dim = check_shard("all_gather", shard, split, dim, rank(), size());
  if (size() == 1) return shard;
  check_dense_on("all_gather", shard, device());
  return state_->call(Op::all_gather, bytes_of(shard) * (size() - 1), [&] {
    at::Tensor full = empty_with_size(shard, dim, split.size());
    if (state_->heap != nullptr) {
      state_->heap->all_gather_out(full, shard, split, dim);
    } else if (dim == 0 && split.is_uniform()) {
      state_->backend->all_gather_even(full, shard);
    } else {
      std::vector<at::Tensor> pieces = pieces_of(full, split, dim);
      state_->backend->all_gather(pieces, shard);
    }
    return full;
  });
}

void Group::all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split) const {
  check_full("all_gather", out, split, /*dim=*/0, size());
  check_shard("all_gather", shard, split, /*dim=*/0, rank(), size());
  check_output("all_gather", out.narrow(0, 0, shard.size(0)), shard);
  if (size() == 1) {
    if (out.const_data_ptr() != shard.const_data_ptr()) out.copy_(shard);
    return;
  }
  check_dense_on("all_gather", shard, device());
  check_dense_on("all_gather", out, device());
  state_->call(Op::all_gather, bytes_of(shard) * (size() - 1), [&] {
    if (state_->heap != nullptr) return state_->heap->all_gather_out(out, shard, split, /*dim=*/0);
    std::vector<at::Tensor> pieces = pieces_of(out, split, /*dim=*/0);
    state_->backend->all_gather(pieces, shard);
  });
}

at::Tensor Group::all_reduce(const at::Tensor& x, Reduce reduce) const {
  if (size() == 1) return x;
  check_dense_on("all_reduce", x, device());
  at::Tensor result = abort_if_failing(*state_->backend, [&] { return copy_to_reduce(x); });
  all_reduce_(result, reduce);
  return result;
}

at::Tensor Group::copy_to_reduce(const at::Tensor& x) const {
  const Timed timed(*state_->counters, *state_->backend, Op::all_reduce);
  const c10::NoGradGuard no_grad;
  at::Tensor copy = empty(x.sizes(), x.scalar_type());
  copy.copy_(x);
  if (state_->heap != nullptr) (*state_->counters)[Op::all_reduce].copied_bytes += bytes_of(x);
  return copy;
}

void Group::all_reduce_(at::Tensor& x, Reduce reduce) const {
  if (size() == 1) return;
  check_dense_on("all_reduce", x, device());
  state_->call(Op::all_reduce, all_reduce_bytes(x, rank(), size()),
               [&] { state_->backend->all_reduce_(x, reduce); });
}

at::Tensor Group::reduce_scatter(const at::Tensor& x, const base::Split& split, int64_t dim) const {
  dim = check_full("reduce_scatter", x, split, dim, size());
  if (size() == 1) return x;
  check_dense_on("reduce_scatter", x, device());
  return state_->call(Op::reduce_scatter, reduce_scatter_bytes(x, split, dim, rank()), [&] {
    at::Tensor out = empty_with_size(x, dim, split.range(rank()).size());
    reduce_scatter_into(out, x, split, dim, InputReuse::overwritable_on_return);
    return out;
  });
}

void Group::reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split) const {
  check_full("reduce_scatter", x, split, /*dim=*/0, size());
  check_shard("reduce_scatter", out, split, /*dim=*/0, rank(), size());
  check_output("reduce_scatter", out, x);
  if (size() == 1) {
    out.copy_(x);
    return;
  }
  check_dense_on("reduce_scatter", x, device());
  check_dense_on("reduce_scatter", out, device());
  state_->call(Op::reduce_scatter, reduce_scatter_bytes(x, split, /*dim=*/0, rank()),
               [&] { reduce_scatter_into(out, x, split, /*dim=*/0, InputReuse::free_only); });
}

void Group::reduce_scatter_into(at::Tensor& out, const at::Tensor& x, const base::Split& split, int64_t dim,
                                InputReuse reuse) const {
  if (state_->heap != nullptr) {
    state_->heap->reduce_scatter_out(out, x, split, dim, reuse);
  } else if (dim == 0 && split.is_uniform()) {
    state_->backend->reduce_scatter_even(out, x, Reduce::sum);
  } else {
    state_->backend->reduce_scatter(out, pieces_of(x, split, dim), Reduce::sum);
  }
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
    TORCH_CHECK_VALUE(x.device() == device(), name(op), ": needs a tensor on ", device(), "; got ",
                      x.toString(), " [SW0501]");
    const at::Tensor partial = x.contiguous();
    const void* const only = partial.const_data_ptr();
    return kernel({&only, 1});
  }
  TORCH_CHECK_VALUE(state_->heap != nullptr, name(op), ": needs a group with a symmetric heap; got one of ",
                    size(), " ranks without it; call the unfused collective instead [SW0502]");
  check_dense_on(name(op).data(), x, device());
  const int64_t sent =
      split ? reduce_scatter_bytes(x, *split, /*dim=*/0, rank()) : all_reduce_bytes(x, rank(), size());
  std::exception_ptr failure;  // of the kernel, for which no peer waits: it does not abort the group
  const auto run_kernel = [&](std::span<const void* const> buffers) {
    try {
      kernel(buffers);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  state_->call(op, sent, [&] { state_->heap->run_on_peer_buffers(x, split, run_kernel); });
  if (failure) std::rethrow_exception(failure);
}

at::Tensor Group::scatter(const at::Tensor& x, int root) const {
  check_root("scatter", root, size());
  check_divisible("scatter", x, size());
  if (size() == 1) return x;
  check_dense_on("scatter", x, device());
  const int64_t shard = bytes_of(x) / size();
  return state_->call(Op::scatter, rank() == root ? bytes_of(x) - shard : 0, [&] {
    at::Tensor out = empty_with_size(x, 0, x.size(0) / size());
    const std::vector<at::Tensor> none;
    state_->backend->scatter(out, rank() == root ? even_pieces(x, size()) : none, root);
    return out;
  });
}

at::Tensor Group::gather(const at::Tensor& shard, int root) const {
  check_root("gather", root, size());
  TORCH_CHECK_VALUE(shard.dim() >= 1, "gather: needs a dim 0; got a scalar [SW0503]");
  if (size() == 1) return shard;
  check_dense_on("gather", shard, device());
  return state_->call(Op::gather, rank() == root ? 0 : bytes_of(shard), [&] {
    at::Tensor full;
    std::vector<at::Tensor> pieces;
    if (rank() == root) {
      full = empty_with_size(shard, 0, shard.size(0) * size());
      pieces = even_pieces(full, size());
    }
    state_->backend->gather(pieces, shard, root);
    return full;
  });
}

at::Tensor Group::all_to_all(const at::Tensor& x) const {
  check_divisible("all_to_all", x, size());
  if (size() == 1) return x;
  check_dense_on("all_to_all", x, device());
  return state_->call(Op::all_to_all, bytes_of(x) - bytes_of(x) / size(), [&] {
    at::Tensor output = at::empty(x.sizes(), x.options());
    const std::vector<int64_t> rows(size_t(size()), x.size(0) / size());
    state_->backend->all_to_all_rows(output, rows, x, rows);
    return output;
  });
}

void Group::barrier() const {
  if (size() == 1) return;
  state_->call(Op::barrier, /*bytes=*/0, [&] { state_->backend->barrier(); });
}

void Group::send(const at::Tensor& x, int to, int tag) const {
  check_peer("send", to, rank(), size());
  check_dense_on("send", x, device());
  state_->call(Op::send, bytes_of(x),
               [&] { state_->backend->send(state_->heap != nullptr ? x : x.contiguous(), to, tag); });
}

void Group::recv_(at::Tensor& x, int from, int tag) const {
  check_peer("recv", from, rank(), size());
  check_dense_on("recv", x, device());
  check_distinct_elements(x, "recv");
  const GroupGuard::Call receiving(state_->backend->guard(), "recv");  // which counts as a send
  state_->call(Op::send, /*bytes=*/0, [&] {
    const bool direct = state_->heap != nullptr || x.is_contiguous();
    const at::Tensor target = direct ? x : at::empty(x.sizes(), x.options());
    state_->backend->receive(target, from, tag)->wait();
    if (!direct) x.copy_(target);
  });
}

}  // namespace shardwise::comm
