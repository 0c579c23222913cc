// The collectives whose sizes all ranks know, but all_reduce (all_reduce.cpp): stage the input, post, read
// the peers' inputs, depart.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shardwise/comm/reduce.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
void Transport::reduce_rows(Arrivals& arrivals, Rows rows, at::Tensor& out, ReduceKernel kernel) {
  channel_.wait_for_arrivals(arrivals);
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* input = peer == rank() && rows.local != nullptr ? rows.local : input_of(arrivals, peer);
    sources_[size_t(peer)] = input + rows.begin * out.element_size();
  }
  at::Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  void* target = dense.mutable_data_ptr();
  kernel(sources_.data(), size(), &target, /*copies=*/1, rows.count);
  if (!dense.is_same(out)) out.copy_(dense);
}

void Transport::reduce_scatter_rows(at::Tensor& out, const at::Tensor& x, Rows rows, Descriptor descriptor,
                                    WaitForPeers wait_for_peers) {
  const ReduceKernel kernel = reduce_kernel(x.scalar_type(), descriptor.reduce);
  const StagedInput staged = stage(x);
  Arrivals& arrivals = post(descriptor, staged);
  reduce_rows(arrivals, rows, out, kernel);
  finish(staged.in_place ? wait_for_peers : WaitForPeers::no);
}

void Transport::reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split,
                                   int64_t dim, InputReuse reuse) {
  const at::Tensor rows_first = x.movedim(dim, 0);
  at::Tensor out_rows_first = out.movedim(dim, 0);
  const base::Range range = split.range(rank());
  const int64_t row = split.size() == 0 ? 0 : x.numel() / split.size();
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, x, x.numel(), dim);
  descriptor.split = split.hash();
  const WaitForPeers wait_for_peers =
      reuse == InputReuse::overwritable_on_return ? WaitForPeers::yes : WaitForPeers::no;
  reduce_scatter_rows(out_rows_first, rows_first, {range.begin * row, range.size() * row}, descriptor,
                      wait_for_peers);
}

void Transport::reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) {
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, x, x.numel());
  descriptor.reduce = reduce;
  reduce_scatter_rows(out, x, {rank() * out.numel(), out.numel()}, descriptor, WaitForPeers::yes);
}

void Transport::reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) {
  const ReduceKernel kernel = reduce_kernel(out.scalar_type(), reduce);
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, out, pieces);
  descriptor.reduce = reduce;
  int64_t begin = 0;
  for (int peer = 0; peer < rank(); ++peer) begin += pieces[size_t(peer)].numel();
  const StagedInput staged = stage_all(pieces);
  Arrivals& arrivals = post(descriptor, staged);
  reduce_rows(arrivals, {begin, out.numel()}, out, kernel);
  finish(WaitForPeers::no);
}

// Without a departure barrier: the caller frees `x`, and does not overwrite it, while peers may still read
// it.
void Transport::run_on_peer_buffers(const at::Tensor& x, const base::Split* rows, PeerBufferKernel read) {
  Descriptor descriptor = descriptor_of(rows ? Op::fused_reduce_scatter : Op::fused_all_reduce, x, x.numel());
  if (rows) descriptor.split = rows->hash();
  const StagedInput staged = stage(x);
  Arrivals& arrivals = post(descriptor, staged);
  channel_.wait_for_arrivals(arrivals);
  for (int peer = 0; peer < size(); ++peer) sources_[size_t(peer)] = input_of(arrivals, peer);
  try {
    read(sources_);
  } catch (...) {
    channel_.depart();  // no peer waits for this departure, so an error of `read` does not abort the group
    throw;
  }
  finish(WaitForPeers::no);
}

void Transport::all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split,
                               int64_t dim) {
  std::vector<at::Tensor> pieces;
  for (int peer = 0; peer < size(); ++peer) {
    pieces.push_back(out.narrow(dim, split.range(peer).begin, split.range(peer).size()));
  }
  all_gather_pieces(pieces, shard, dim);
}

// Starts with the local piece and continues cyclically, so that the ranks do not all read the same memory at
// once.
void Transport::all_gather_pieces(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int64_t dim) {
  const Descriptor descriptor = descriptor_of(Op::all_gather, shard, pieces, dim);
  const StagedInput staged = stage(shard);
  Arrivals& arrivals = post(descriptor, staged);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_out(pieces[size_t(peer)], input_of(arrivals, peer));
  }
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::broadcast_(at::Tensor& x, int root) {
  const StagedInput staged = rank() == root ? stage(x) : StagedInput();
  Arrivals& arrivals = post(descriptor_of(Op::broadcast, x, x.numel(), root), staged);
  if (rank() != root) copy_out(x, input_of(arrivals, root));
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::barrier() {
  channel_.wait_for_arrivals(channel_.post(Descriptor()));
  finish(WaitForPeers::no);
}

}  // namespace shardwise::comm::shm
