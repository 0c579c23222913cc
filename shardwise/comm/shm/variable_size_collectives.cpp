// The collectives whose pieces may differ in size between pairs of ranks: scatter, gather, all_to_all.
//
// Only two ranks know the size of a piece, so descriptors do not contain it. The sender stores the sizes of
// its pieces at the start of its slot (int64, in elements, in the order of the pieces in its input), and the
// receiver compares them before it reads.
#include <cstring>
#include <numeric>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

static_assert(kMaxRanks * sizeof(int64_t) <= kInlineBytes);

std::vector<int64_t> numels_of(const std::vector<at::Tensor>& pieces) {
  std::vector<int64_t> numels;
  for (const at::Tensor& piece : pieces) numels.push_back(piece.numel());
  return numels;
}

}  // namespace

/// Stores the sizes in the slot. Returns the bytes used.
int64_t Transport::store_sizes(const std::vector<int64_t>& numels) {
  const size_t bytes = numels.size() * sizeof(int64_t);
  std::memcpy(channel_.next_payload(), numels.data(), bytes);
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
  if (rank() == root) staged = stage_all(pieces, store_sizes(numels_of(pieces)));
  Arrivals& arrivals = post(descriptor_of(Op::scatter, out, /*numel=*/0, root), staged);
  copy_piece(out, arrivals, {root, /*index=*/rank()});
  channel_.wait_for_arrivals(arrivals);
  finish(WaitForPeers::no);
}

void Transport::gather(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int root) {
  const StagedInput staged = stage(shard, store_sizes({shard.numel()}));
  Arrivals& arrivals = post(descriptor_of(Op::gather, shard, /*numel=*/0, root), staged);
  for (int peer = 0; rank() == root && peer < size(); ++peer) {
    copy_piece(pieces[size_t(peer)], arrivals, {peer, /*index=*/0});
  }
  channel_.wait_for_arrivals(arrivals);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::all_to_all(std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& pieces) {
  const StagedInput staged = stage_all(pieces, store_sizes(numels_of(pieces)));
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
  const StagedInput staged = stage(x, store_sizes(numels));
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
