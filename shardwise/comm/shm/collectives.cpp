// The collectives, each as: stage the input, post, read the peers' inputs, close.
//
// Only reduce_slices writes into peers' memory. Its slices are those of Split::even over the flat message,
// and slice s of every buffer is touched by rank s alone between opening and closing, so nothing separates
// reading from writing.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/shm/reduce.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

/// As many may read each other's whole inputs: more read less when each reduces a slice.
constexpr int kFewRanks = 4;

/// A deliberate fault: rounds to the dtype after every term.
void add_one_by_one(ReduceKernel kernel, const std::vector<const void*>& terms, void* sum, int64_t count) {
  kernel(terms.data(), /*ranks=*/1, &sum, /*copies=*/1, count);
  for (size_t i = 1; i < terms.size(); ++i) {
    const void* pair[] = {sum, terms[i]};
    kernel(pair, /*ranks=*/2, &sum, /*copies=*/1, count);
  }
}

}  // namespace

void Transport::all_reduce_(at::Tensor& x, Reduce reduce) {
  const ReduceKernel kernel = reduce_kernel(x.scalar_type(), reduce);
  Descriptor descriptor = descriptor_of(Op::all_reduce, x, x.numel());
  descriptor.reduce = reduce;
  if (int64_t(x.nbytes()) <= one_shot_.bytes) {
    one_shot(x, descriptor, kernel);
  } else if (size() <= kFewRanks) {
    in_place_or_by_chunks(x, descriptor, kernel);
  } else {
    two_shot(x, descriptor, kernel);
  }
}

// Every rank reads every input. The inputs are in the slots, so a rank may go on while peers still read its
// own; it reads that in `x`, for lines that peers are fetching are slow (a third of the time at 1 KB).
void Transport::one_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel) {
  const Staged staged{channel_.next_payload(), /*in_place=*/false, Block()};
  copy_in(staged.data, x);
  Opening& opening = post(descriptor, staged);
  const void* own = x.is_contiguous() ? x.const_data_ptr() : nullptr;
  reduce_rows(opening, {0, x.numel(), static_cast<const std::byte*>(own)}, x, kernel);
  finish(WaitForPeers::no);
}

void Transport::two_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel) {
  const Staged staged = stage(x);
  Opening& opening = post(descriptor, staged);
  channel_.await_all(opening);
  reduce_slices(x, opening, kernel);
  finish(WaitForPeers::yes);
  if (base::mutated(base::Mutation::drop_reduced_copy) && !x.is_contiguous()) return;
  if (!staged.in_place) copy_out(x, staged.data);
}

// Every rank reduces its slice of all inputs and writes it into all of them.
void Transport::reduce_slices(const at::Tensor& x, Opening& opening, ReduceKernel kernel) {
  const int64_t share = x.numel() / size(), remainder = x.numel() % size();
  const int64_t begin = rank() * share + std::min<int64_t>(rank(), remainder),
                count = share + (rank() < remainder);
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* slice = input_of(opening, peer) + begin * x.element_size();
    sources_[size_t(peer)] = slice;
    targets_[size_t(peer)] = const_cast<std::byte*>(slice);
  }
  kernel(sources_.data(), size(), targets_.data(), size(), count);
  copied_bytes_ += count * x.element_size() * (size() - 1);
}

void Transport::reduce_rows(Opening& opening, Rows rows, at::Tensor& out, ReduceKernel kernel) {
  channel_.await_all(opening);
  for (int peer = 0; peer < size(); ++peer) {
    const int place =
        base::mutated(base::Mutation::own_term_first) ? (peer + size() - rank()) % size() : peer;
    const std::byte* input = peer == rank() && rows.own != nullptr ? rows.own : input_of(opening, peer);
    sources_[size_t(place)] = input + rows.begin * out.element_size();
  }
  const bool one_by_one = base::mutated(base::Mutation::round_every_term);
  at::Tensor dense = out.is_contiguous() && !one_by_one ? out : at::empty(out.sizes(), out.options());
  void* target = dense.mutable_data_ptr();
  if (one_by_one) {
    add_one_by_one(kernel, sources_, target, rows.count);
  } else {
    kernel(sources_.data(), size(), &target, /*copies=*/1, rows.count);
  }
  if (!dense.is_same(out)) out.copy_(dense);
}

void Transport::reduce_scatter_rows(at::Tensor& out, const at::Tensor& x, Rows rows, Descriptor descriptor,
                                    WaitForPeers wait_for_peers) {
  const ReduceKernel kernel = reduce_kernel(x.scalar_type(), descriptor.reduce);
  const Staged staged = stage(x);
  Opening& opening = post(descriptor, staged);
  reduce_rows(opening, rows, out, kernel);
  finish(staged.in_place ? wait_for_peers : WaitForPeers::no);
}

void Transport::reduce_scatter_out(at::Tensor& out, const at::Tensor& x, const base::Split& split,
                                   int64_t dim, InputReuse then) {
  const at::Tensor rows_first = x.movedim(dim, 0);
  at::Tensor out_rows_first = out.movedim(dim, 0);
  const base::Range range = split.range(rank());
  const int64_t row = split.size() == 0 ? 0 : x.numel() / split.size();
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, x, x.numel(), dim);
  descriptor.split = split.hash();
  const WaitForPeers wait_for_peers =
      then == InputReuse::overwritable_on_return ? WaitForPeers::yes : WaitForPeers::no;
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
  const Staged staged = stage_all(pieces);
  Opening& opening = post(descriptor, staged);
  reduce_rows(opening, {begin, out.numel()}, out, kernel);
  finish(WaitForPeers::no);
}

// As reduce_scatter that does not close: the caller drops what peers may still read.
void Transport::fuse_with(const at::Tensor& x, const base::Split* rows, PeerBufferKernel read) {
  Descriptor descriptor = descriptor_of(rows ? Op::fused_reduce_scatter : Op::fused_all_reduce, x, x.numel());
  if (rows) descriptor.split = rows->hash();
  const Staged staged = stage(x);
  Opening& opening = post(descriptor, staged);
  channel_.await_all(opening);
  for (int peer = 0; peer < size(); ++peer) sources_[size_t(peer)] = input_of(opening, peer);
  try {
    read(sources_);
  } catch (...) {
    channel_.close();  // nobody waits for this end, so a reader's own error breaks nothing off
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

// Starts with the own piece and goes round, so that the ranks do not all read the same memory at the same
// time.
void Transport::all_gather_pieces(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int64_t dim) {
  const Descriptor descriptor = descriptor_of(Op::all_gather, shard, pieces, dim);
  const Staged staged = stage(shard);
  Opening& opening = post(descriptor, staged);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_out(pieces[size_t(peer)], input_of(opening, peer));
  }
  channel_.await_all(opening);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::broadcast_(at::Tensor& x, int root) {
  const Staged staged = rank() == root ? stage(x) : Staged();
  Opening& opening = post(descriptor_of(Op::broadcast, x, x.numel(), root), staged);
  if (rank() != root) copy_out(x, input_of(opening, root));
  channel_.await_all(opening);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::barrier() {
  channel_.await_all(channel_.post(Descriptor()));
  finish(WaitForPeers::no);
}

}  // namespace shardwise::comm::shm
