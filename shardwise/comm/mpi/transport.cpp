#include "shardwise/comm/mpi/transport.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "shardwise/base/split.h"
#include "shardwise/comm/mpi/hierarchical.h"
#include "shardwise/comm/reduce.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm::mpi {
namespace {

using Tensors = Transport::Tensors;

const char* const kFlat = "flat";

Descriptor reducing(Descriptor descriptor, Reduce reduce) {
  descriptor.reduce = reduce;
  return descriptor;
}

/// Visits the other ranks of the subgroup, starting with this rank's neighbor, so that not all ranks send to
/// one rank.
template <class Visit>
void visit_others(const std::vector<int>& subgroup, int rank, const Visit& visit) {
  const size_t index = size_t(std::find(subgroup.begin(), subgroup.end(), rank) - subgroup.begin());
  for (size_t step = 1; step < subgroup.size(); ++step) visit((index + step) % subgroup.size());
}

/// Returns the elements of `flat` in [begin, begin + count).
at::Tensor part_of(const at::Tensor& flat, int64_t begin, int64_t count) {
  const int64_t start = std::min(begin, flat.numel());
  return flat.narrow(0, start, std::min(count, flat.numel() - start));
}

int64_t largest_of(const Tensors& pieces) {
  int64_t largest = 0;
  for (const at::Tensor& piece : pieces) largest = std::max(largest, piece.numel());
  return largest;
}

}  // namespace

Tensors split_rows(const at::Tensor& x, const std::vector<int64_t>& sizes) {
  Tensors parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

Tensors split_evenly(const at::Tensor& flat, int parts) {
  const auto split = base::Split::even(kFlat, flat.numel(), parts);
  std::vector<int64_t> sizes;
  for (int part = 0; part < parts; ++part) sizes.push_back(split.range(part).size());
  return split_rows(flat, sizes);
}

Transport::Transport(const ConnectOptions& options, Membership membership)
    : channel_(std::make_shared<Channel>(options, std::move(membership))),
      messages_(channel_),
      round_bytes_(options.round_bytes),
      all_(size_t(channel_->size())) {
  std::iota(all_.begin(), all_.end(), 0);
}

std::vector<int> Transport::nodes() const {
  const Nodes nodes = Nodes::of(channel_->membership());
  std::vector<int> of_rank(all_.size());
  for (size_t node = 0; node < nodes.ranks.size(); ++node)
    for (const int rank : nodes.ranks[node]) of_rank[size_t(rank)] = static_cast<int>(node);
  return of_rank;
}

// Runs in rounds to bound the receive buffers. All ranks know the sizes of all pieces, hence the number of
// rounds.
void Transport::reduce_pieces(at::Tensor& out, const Tensors& pieces, Reduce reduce,
                              const Subgroup& subgroup) {
  const ReduceKernel kernel = reduce_kernel(out.scalar_type(), reduce);
  const int64_t block = std::max<int64_t>(1, round_bytes_ / out.element_size());
  const int64_t largest = largest_of(pieces);
  const at::Tensor received =
      at::empty({int64_t(subgroup.size()), std::min(block, out.numel())}, out.options().requires_grad(false));
  const size_t self = size_t(std::find(subgroup.begin(), subgroup.end(), rank()) - subgroup.begin());
  for (int64_t begin = 0; begin < largest; begin += block) {
    at::Tensor target = part_of(out, begin, block);
    Transfers transfers = channel_->transfers();
    visit_others(subgroup, rank(), [&](size_t i) {
      transfers.receive(received[int64_t(i)].narrow(0, 0, target.numel()), channel_->data(subgroup[i]));
    });
    visit_others(subgroup, rank(), [&](size_t i) {
      transfers.send(part_of(pieces[i], begin, block), channel_->data(subgroup[i]));
    });
    channel_->run(transfers);
    if (target.numel() == 0) continue;
    const at::Tensor local = part_of(pieces[self], begin, block);
    std::vector<const void*> sources;
    for (size_t i = 0; i < subgroup.size(); ++i)
      sources.push_back((i == self ? local : received[int64_t(i)]).const_data_ptr());
    void* const sum = target.mutable_data_ptr();
    kernel(sources.data(), static_cast<int>(subgroup.size()), &sum, /*copies=*/1, target.numel());
  }
}

void Transport::gather_pieces(const Tensors& pieces, const at::Tensor& shard, const Subgroup& subgroup) {
  Transfers transfers = channel_->transfers();
  visit_others(subgroup, rank(),
               [&](size_t i) { transfers.receive(pieces[i], channel_->data(subgroup[i])); });
  visit_others(subgroup, rank(), [&](size_t i) { transfers.send(shard, channel_->data(subgroup[i])); });
  channel_->run(transfers);
}

void Transport::broadcast_dense(const at::Tensor& x, int root, const Subgroup& subgroup) {
  Transfers transfers = channel_->transfers();
  if (rank() == root) {
    visit_others(subgroup, rank(), [&](size_t i) { transfers.send(x, channel_->data(subgroup[i])); });
  } else {
    transfers.receive(x, channel_->data(root));
  }
  channel_->run(transfers);
}

void Transport::all_reduce_(at::Tensor& x, Reduce reduce) {
  reduce_kernel(x.scalar_type(), reduce);  // throws its errors before the peers wait
  const Descriptor descriptor = reducing(descriptor_of(Op::all_reduce, x, x.numel()), reduce);
  at::Tensor dense = x.contiguous();
  if (channel_->fits_payload(x.nbytes())) {
    one_shot(dense, descriptor, reduce);
  } else {
    two_shot(dense, descriptor, reduce);
  }
  copy_back(x, dense);
}

// The inputs are the payloads of the announcements.
void Transport::one_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce) {
  channel_->open(descriptor,
                 {{static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}, {}, {}});
  if (dense.numel() == 0) return;
  std::vector<const void*> sources;
  for (int peer = 0; peer < size(); ++peer) sources.push_back(channel_->payload(peer));
  void* const sum = dense.mutable_data_ptr();
  reduce_kernel(dense.scalar_type(), reduce)(sources.data(), size(), &sum, /*copies=*/1, dense.numel());
}

void Transport::two_shot(at::Tensor& dense, const Descriptor& descriptor, Reduce reduce) {
  channel_->open(descriptor);
  const Tensors slices = split_evenly(dense.view({-1}), size());
  at::Tensor slice = slices[size_t(rank())];
  reduce_pieces(slice, slices, reduce, all_);
  gather_pieces(slices, slice, all_);
}

void Transport::reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) {
  reduce_kernel(out.scalar_type(), reduce);
  channel_->open(reducing(descriptor_of(Op::reduce_scatter, out, pieces), reduce));
  Tensors flat;
  for (const at::Tensor& piece : pieces) flat.push_back(piece.contiguous().view({-1}));
  const at::Tensor dense = dense_like(out);
  at::Tensor target = dense.view({-1});
  reduce_pieces(target, flat, reduce, all_);
  copy_back(out, dense);
}

void Transport::reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) {
  reduce_scatter(out, split_evenly(x.contiguous().view({-1}), size()), reduce);
}

void Transport::all_gather(Tensors& pieces, const at::Tensor& shard) {
  channel_->open(descriptor_of(Op::all_gather, shard, pieces));
  const Tensors dense = dense_like(pieces);
  gather_pieces(dense, shard.contiguous(), all_);
  copy_back(pieces, dense);
  const c10::NoGradGuard no_grad;
  pieces[size_t(rank())].copy_(shard.reshape(pieces[size_t(rank())].sizes()));
}

void Transport::broadcast_(at::Tensor& x, int root) {
  channel_->open(descriptor_of(Op::broadcast, x, x.numel(), root));
  const at::Tensor dense = rank() == root ? x.contiguous() : dense_like(x);
  broadcast_dense(dense, root, all_);
  if (rank() != root) copy_back(x, dense);
}

void Transport::scatter(at::Tensor& out, const Tensors& pieces, int root) {
  std::vector<int64_t> sent = numels_of(pieces), expected = zero_sizes();
  if (rank() != root) sent = zero_sizes();
  expected[size_t(root)] = out.numel();
  channel_->open(descriptor_of(Op::scatter, out, /*numel=*/0, root), {{}, sent, expected});
  const at::Tensor dense = dense_like(out);
  const Tensors inputs = contiguous(pieces);
  Transfers transfers = channel_->transfers();
  if (rank() != root) {
    transfers.receive(dense, channel_->data(root));
  } else {
    visit_others(all_, rank(), [&](size_t i) { transfers.send(inputs[i], channel_->data(all_[i])); });
  }
  channel_->run(transfers);
  copy_back(out, rank() == root ? inputs[size_t(root)] : dense);
}

void Transport::gather(Tensors& pieces, const at::Tensor& shard, int root) {
  std::vector<int64_t> sent = zero_sizes(), expected = numels_of(pieces);
  if (rank() != root) expected = zero_sizes();
  sent[size_t(root)] = shard.numel();
  channel_->open(descriptor_of(Op::gather, shard, /*numel=*/0, root), {{}, sent, expected});
  Tensors dense = dense_like(pieces);
  const at::Tensor local = shard.contiguous();
  Transfers transfers = channel_->transfers();
  if (rank() != root) {
    transfers.send(local, channel_->data(root));
  } else {
    visit_others(all_, rank(), [&](size_t i) { transfers.receive(dense[i], channel_->data(all_[i])); });
    dense[size_t(root)] = local;
  }
  channel_->run(transfers);
  copy_back(pieces, dense);
}

void Transport::all_to_all(Tensors& outs, const Tensors& pieces) {
  const std::vector<int64_t> sent = numels_of(pieces), expected = numels_of(outs);
  channel_->open(descriptor_of(Op::all_to_all, pieces[0], /*numel=*/0), {{}, sent, expected});
  Tensors dense = dense_like(outs);
  const Tensors inputs = contiguous(pieces);
  Transfers transfers = channel_->transfers();
  visit_others(all_, rank(), [&](size_t i) { transfers.receive(dense[i], channel_->data(all_[i])); });
  visit_others(all_, rank(), [&](size_t i) { transfers.send(inputs[i], channel_->data(all_[i])); });
  dense[size_t(rank())] = inputs[size_t(rank())];
  channel_->run(transfers);
  copy_back(outs, dense);
}

void Transport::all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                                const std::vector<int64_t>& x_rows) {
  Tensors outs = split_rows(out, out_rows);
  all_to_all(outs, split_rows(x, x_rows));
}

void Transport::barrier() {
  channel_->open({});
}

}  // namespace shardwise::comm::mpi
