// The collectives but all_reduce (all_reduce.cpp): stage the input, post, read the peers' inputs, depart.
//
// In scatter, gather and all_to_all, only two ranks know the size of a piece, so descriptors do not contain
// it. The sender stores the sizes of its pieces at the start of its slot (int64, in elements, in the order of
// the pieces in its input), and the receiver compares them before it reads.
#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>

#include "shardwise/comm/reduce.h"
#include "shardwise/comm/shm/transport.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm::shm {
namespace {

static_assert(kMaxRanks * sizeof(int64_t) <= kInlineBytes);

}  // namespace

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
  const StagedInput staged = stage(descriptor.op, x);
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
  const StagedInput staged = stage_all(Op::reduce_scatter, pieces);
  Arrivals& arrivals = post(descriptor, staged);
  reduce_rows(arrivals, {begin, out.numel()}, out, kernel);
  finish(WaitForPeers::no);
}

// Without a departure barrier: the caller frees `x`, and does not overwrite it, while peers may still read
// it.
void Transport::run_on_peer_buffers(const at::Tensor& x, const base::Split* rows, PeerBufferKernel read) {
  Descriptor descriptor = descriptor_of(rows ? Op::fused_reduce_scatter : Op::fused_all_reduce, x, x.numel());
  if (rows) descriptor.split = rows->hash();
  const StagedInput staged = stage(descriptor.op, x);
  Arrivals& arrivals = post(descriptor, staged);
  channel_.wait_for_arrivals(arrivals);
  for (int peer = 0; peer < size(); ++peer) sources_[size_t(peer)] = input_of(arrivals, peer);
  read(sources_);
  finish(WaitForPeers::no);
}

void Transport::all_gather_out(at::Tensor& out, const at::Tensor& shard, const base::Split& split,
                               int64_t dim) {
  std::vector<at::Tensor> pieces = pieces_of(out, split, dim);
  all_gather_pieces(pieces, shard, dim);
}

// Starts with the local piece and continues cyclically, so that the ranks do not all read the same memory at
// once.
void Transport::all_gather_pieces(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int64_t dim) {
  const Descriptor descriptor = descriptor_of(Op::all_gather, shard, pieces, dim);
  const StagedInput staged = stage(Op::all_gather, shard);
  Arrivals& arrivals = post(descriptor, staged);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_out(pieces[size_t(peer)], input_of(arrivals, peer));
  }
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::broadcast_(at::Tensor& x, int root) {
  const StagedInput staged = rank() == root ? stage(Op::broadcast, x) : StagedInput();
  Arrivals& arrivals = post(descriptor_of(Op::broadcast, x, x.numel(), root), staged);
  if (rank() != root) copy_out(x, input_of(arrivals, root));
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::barrier() {
  channel_.wait_for_arrivals(channel_.post(Descriptor()));
  finish(WaitForPeers::no);
}

/// Stores the sizes in the slot. Returns the bytes used.
int64_t Transport::store_sizes(Op op, const std::vector<int64_t>& numels) {
  const size_t bytes = numels.size() * sizeof(int64_t);
  std::memcpy(channel_.next_payload(op), numels.data(), bytes);
  return int64_t(bytes);
}

void Transport::copy_piece(at::Tensor& target, Arrivals& arrivals, PieceIndex piece) {
  const std::byte* input = input_of(arrivals, piece.sender);
  const auto* numels = reinterpret_cast<const int64_t*>(channel_.payload(arrivals, piece.sender));
  const int64_t numel = numels[piece.index];
  if (numel != target.numel()) {
    const auto dtype = static_cast<int8_t>(target.scalar_type());
    channel_.fail_transfer(channel_.wait_context(piece.sender), piece.sender, describe(dtype, numel),
                           describe(dtype, target.numel()));
  }
  const int64_t begin = std::accumulate(numels, numels + piece.index, int64_t{0});
  copy_out(target, input + begin * int64_t(target.element_size()));
}

void Transport::scatter(at::Tensor& out, const std::vector<at::Tensor>& pieces, int root) {
  StagedInput staged;
  if (rank() == root) staged = stage_all(Op::scatter, pieces, store_sizes(Op::scatter, numels_of(pieces)));
  Arrivals& arrivals = post(descriptor_of(Op::scatter, out, /*numel=*/0, root), staged);
  copy_piece(out, arrivals, {root, /*index=*/rank()});
  channel_.wait_for_arrivals(arrivals);
  finish(WaitForPeers::no);
}

void Transport::gather(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int root) {
  const StagedInput staged = stage(Op::gather, shard, store_sizes(Op::gather, {shard.numel()}));
  Arrivals& arrivals = post(descriptor_of(Op::gather, shard, /*numel=*/0, root), staged);
  for (int peer = 0; rank() == root && peer < size(); ++peer) {
    copy_piece(pieces[size_t(peer)], arrivals, {peer, /*index=*/0});
  }
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::all_to_all(std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& pieces) {
  const StagedInput staged =
      stage_all(Op::all_to_all, pieces, store_sizes(Op::all_to_all, numels_of(pieces)));
  Arrivals& arrivals = post(descriptor_of(Op::all_to_all, pieces[0], /*numel=*/0), staged);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_piece(outs[size_t(peer)], arrivals, {peer, /*index=*/rank()});
  }
  channel_.wait_for_arrivals(arrivals);
  finish(WaitForPeers::no);
}

void Transport::all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                                const std::vector<int64_t>& x_rows) {
  const int64_t row = c10::multiply_integers(x.sizes().slice(1));
  std::vector<int64_t> numels;
  for (const int64_t rows : x_rows) numels.push_back(rows * row);
  const StagedInput staged = stage(Op::all_to_all, x, store_sizes(Op::all_to_all, numels));
  Arrivals& arrivals = post(descriptor_of(Op::all_to_all, x, /*numel=*/0), staged);
  std::vector<at::Tensor> blocks = out.split_with_sizes(out_rows);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_piece(blocks[size_t(peer)], arrivals, {peer, /*index=*/rank()});
  }
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

}  // namespace shardwise::comm::shm
