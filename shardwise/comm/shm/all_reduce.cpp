// all_reduce by three algorithms: one-shot for small tensors; two-shot, in place where the ranks' tensors are
// in the symmetric heap; and in chunks for other tensors of few ranks.
//
// reduce_slices writes into peers' memory. Its slices are those of Split::even over the flat message. Only
// rank s accesses slice s of any buffer between the arrival and the departure barrier, so reads and writes
// need no barrier in between.
//
// Chunks stay in the cache, so that memory is read once and written once. Each rank copies a chunk to shared
// memory, and every rank reduces all chunks into its own tensor: one synchronization per chunk. There are two
// chunk buffers. A rank overwrites the buffer of chunk k with chunk k+2 after it has seen every peer post
// k+1, because every peer has then read k.
#include <algorithm>
#include <cstring>

#include "shardwise/comm/reduce.h"
#include "shardwise/comm/shm/pack.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

/// Up to this many ranks read each other's full inputs. With more, reducing one slice each reads less.
constexpr int kMaxRanksReadingAll = 4;

/// Measured with two ranks: 128 KB chunks move between the cores' L2 caches and take twice as long; with 2 MB
/// the ranks' chunk buffers do not fit in L3.
constexpr int64_t kChunkBytes = int64_t{512} << 10;

int64_t count_unregistered(const Arrivals& arrivals) {
  return std::count_if(arrivals.descriptors.begin(), arrivals.descriptors.end(),
                       [](const Descriptor& descriptor) { return descriptor.is_unregistered; });
}

}  // namespace

void Transport::all_reduce_(at::Tensor& x, Reduce reduce) {
  const ReduceKernel kernel = reduce_kernel(x.scalar_type(), reduce);
  Descriptor descriptor = descriptor_of(Op::all_reduce, x, x.numel());
  descriptor.reduce = reduce;
  if (int64_t(x.nbytes()) <= one_shot_.bytes) {
    one_shot(x, descriptor, kernel);
  } else if (size() <= kMaxRanksReadingAll) {
    all_reduce_in_place_or_chunked(x, descriptor, kernel);
  } else {
    two_shot(x, descriptor, kernel);
  }
}

// Every rank reads every input. The inputs are in the slots, so a rank may return while peers still read its
// slot. It reads its own input in `x`, because cache lines that peers fetch are slow (a third of the time at
// 1 KB).
void Transport::one_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel) {
  const StagedInput staged{channel_.next_payload(descriptor.op), /*in_place=*/false, HeapBlock()};
  copy_in(staged.data, x);
  Arrivals& arrivals = post(descriptor, staged);
  const void* local = x.is_contiguous() ? x.const_data_ptr() : nullptr;
  reduce_rows(arrivals, {0, x.numel(), static_cast<const std::byte*>(local)}, x, kernel);
  finish(WaitForPeers::no);
}

void Transport::two_shot(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel) {
  const StagedInput staged = stage(descriptor.op, x);
  Arrivals& arrivals = post(descriptor, staged);
  channel_.wait_for_arrivals(arrivals);
  reduce_slices(x, arrivals, kernel);
  finish(WaitForPeers::yes);
  if (!staged.in_place) copy_out(x, staged.data);
}

// Every rank reduces its slice of all inputs and writes the result into all of them.
void Transport::reduce_slices(const at::Tensor& x, Arrivals& arrivals, ReduceKernel kernel) {
  const int64_t share = x.numel() / size(), remainder = x.numel() % size();
  const int64_t begin = rank() * share + std::min<int64_t>(rank(), remainder),
                count = share + (rank() < remainder);
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* slice = input_of(arrivals, peer) + begin * x.element_size();
    sources_[size_t(peer)] = slice;
    targets_[size_t(peer)] = const_cast<std::byte*>(slice);
  }
  kernel(sources_.data(), size(), targets_.data(), size(), count);
  copied_bytes_ += count * x.element_size() * (size() - 1);
}

void Transport::all_reduce_in_place_or_chunked(at::Tensor& x, const Descriptor& descriptor,
                                               ReduceKernel kernel) {
  if (x.is_contiguous() && contains(x)) {
    Arrivals& arrivals = post(descriptor, {static_cast<std::byte*>(x.mutable_data_ptr()), true, HeapBlock()});
    channel_.wait_for_arrivals(arrivals);
    if (count_unregistered(arrivals) == 0) {
      reduce_slices(x, arrivals, kernel);
      return finish(WaitForPeers::yes);
    }
    // Before departing: peers go on to the chunks, and an error in between would leave them waiting.
    const HeapBlock buffers = allocate_chunk_buffers(x);
    channel_.depart();
    return all_reduce_chunked(x, buffers, descriptor, kernel);
  }
  check_on_cpu(x);
  all_reduce_chunked(x, allocate_chunk_buffers(x), descriptor, kernel);
}

/// Returns an empty block if the tensor fits in a slot; slots alternate like the chunk buffers.
HeapBlock Transport::allocate_chunk_buffers(const at::Tensor& x) const {
  const auto bytes = int64_t(x.nbytes());
  return bytes <= int64_t(kInlineBytes) ? HeapBlock() : HeapBlock(heap_, 2 * std::min(bytes, kChunkBytes));
}

void Transport::all_reduce_chunked(at::Tensor& x, const HeapBlock& buffers, Descriptor descriptor,
                                   ReduceKernel kernel) {
  descriptor.is_unregistered = true;
  at::Tensor dense = x.contiguous();
  auto* const local = static_cast<std::byte*>(dense.mutable_data_ptr());
  const int64_t bytes = int64_t(dense.nbytes()), chunk = std::min(bytes, kChunkBytes);
  const bool fits_slot = bytes <= int64_t(kInlineBytes);
  for (int64_t begin = 0, k = 0; begin < bytes; ++k) {
    const int64_t count = std::min(chunk, bytes - begin);
    std::byte* const buffer =
        fits_slot ? channel_.next_payload(descriptor.op) : buffers.data() + k % 2 * chunk;
    const StagedInput staged{buffer, /*in_place=*/false, HeapBlock()};
    std::memcpy(staged.data, local + begin, size_t(count));
    copied_bytes_ += count;
    Arrivals& arrivals = post(descriptor, staged);
    channel_.wait_for_arrivals(arrivals);
    if (count_unregistered(arrivals) == size()) {
      for (int peer = 0; peer < size(); ++peer)
        sources_[size_t(peer)] = peer == rank() ? local + begin : input_of(arrivals, peer);
      void* target = local + begin;
      kernel(sources_.data(), size(), &target, /*copies=*/1, count / x.element_size());
      begin += count;
    }  // else a peer with a registered tensor now knows that it must copy, too: retry
    channel_.depart();
  }
  outbox_.free_received();
  if (!x.is_contiguous()) x.copy_(dense);
}

}  // namespace shardwise::comm::shm
