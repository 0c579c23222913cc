// all_reduce of tensors that peers cannot read where they lie: in chunks that stay in the cache, so that
// memory is read once and written once.
//
// A chunk is copied to shared memory and summed from there by every rank into its own tensor: one
// synchronization. There are two places for chunks. A rank writes the place of chunk k again for chunk k+2,
// when it has seen every peer announce k+1, who has then read k.
#include <algorithm>
#include <cstring>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/shm/pack.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

/// Measured with two ranks: 128 KB go from one core's second cache to the other's and take twice as long,
/// with 2 MB the ranks' places leave the third.
constexpr int64_t kChunkBytes = int64_t{512} << 10;

int64_t foreign_in(const Opening& opening) {
  return std::count_if(opening.descriptors.begin(), opening.descriptors.end(),
                       [](const Descriptor& descriptor) { return descriptor.is_unregistered; });
}

}  // namespace

void Transport::in_place_or_by_chunks(at::Tensor& x, const Descriptor& descriptor, ReduceKernel kernel) {
  if (x.is_contiguous() && contains(x)) {
    Opening& opening = post(descriptor, {static_cast<std::byte*>(x.mutable_data_ptr()), true, Block()});
    channel_.await_all(opening);
    if (foreign_in(opening) == 0) {
      reduce_slices(x, opening, kernel);
      return finish(WaitForPeers::yes);
    }
    // Before it is closed: peers go on to the chunks, and an error in between leaves them waiting.
    const Block places = chunk_places(x);
    channel_.close();
    return by_chunks(x, places, descriptor, kernel);
  }
  check_on_cpu(x);
  by_chunks(x, chunk_places(x), descriptor, kernel);
}

/// None where a slot has room; slots alternate as the places do.
Block Transport::chunk_places(const at::Tensor& x) const {
  const auto bytes = int64_t(x.nbytes());
  return bytes <= int64_t(kInlineBytes) ? Block() : Block(heap_, 2 * std::min(bytes, kChunkBytes));
}

void Transport::by_chunks(at::Tensor& x, const Block& places, Descriptor descriptor, ReduceKernel kernel) {
  descriptor.is_unregistered = true;
  at::Tensor dense = x.contiguous();
  auto* const own = static_cast<std::byte*>(dense.mutable_data_ptr());
  const int64_t bytes = int64_t(dense.nbytes()), chunk = std::min(bytes, kChunkBytes);
  const bool fits_slot = bytes <= int64_t(kInlineBytes);
  for (int64_t begin = 0, k = 0; begin < bytes; ++k) {
    const int64_t count = std::min(chunk, bytes - begin);
    std::byte* const place = fits_slot ? channel_.next_payload() : places.data() + k % 2 * chunk;
    const Staged staged{place, /*in_place=*/false, Block()};
    std::memcpy(staged.data, own + begin, size_t(count));
    copied_bytes_ += count;
    Opening& opening = post(descriptor, staged);
    channel_.await_all(opening);
    if (foreign_in(opening) == size()) {
      for (int peer = 0; peer < size(); ++peer)
        sources_[size_t(peer)] = peer == rank() ? own + begin : input_of(opening, peer);
      void* target = own + begin;
      kernel(sources_.data(), size(), &target, /*copies=*/1, count / x.element_size());
      begin += count;
    }  // else a peer in place has learned by this that it must copy, too: again
    channel_.close();
  }
  outbox_.collect();
  if (base::mutated(base::Mutation::drop_reduced_copy)) return;
  if (!x.is_contiguous()) x.copy_(dense);
}

}  // namespace shardwise::comm::shm
