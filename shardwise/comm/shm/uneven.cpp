// The collectives in which each pair of ranks has a piece of its own size: scatter, gather, all_to_all.
//
// A size is known to two ranks, so descriptors say nothing of it. The sender of pieces begins its slot with
// their sizes (int64, in elements, in the order in which the pieces lie in its input), and a receiver
// compares before it reads.
#include <cstring>
#include <numeric>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

static_assert(kMostRanks * sizeof(int64_t) <= kInlineBytes);

std::vector<int64_t> numels_of(const std::vector<at::Tensor>& pieces) {
  std::vector<int64_t> numels;
  for (const at::Tensor& piece : pieces) numels.push_back(piece.numel());
  return numels;
}

}  // namespace

/// Returns the bytes that this takes of the slot.
int64_t Transport::announce_sizes(const std::vector<int64_t>& numels) {
  const size_t bytes = numels.size() * sizeof(int64_t);
  std::memcpy(channel_.next_payload(), numels.data(), bytes);
  return int64_t(bytes);
}

void Transport::copy_piece(at::Tensor& target, Opening& opening, LaunchContext place) {
  const std::byte* input = input_of(opening, place.sender);
  const auto* numels = reinterpret_cast<const int64_t*>(channel_.payload(opening, place.sender));
  const int64_t numel = numels[place.index];
  if (numel != target.numel()) {
    const auto dtype = static_cast<int8_t>(target.scalar_type());
    channel_.fail_transfer(channel_.attempt(place.sender), place.sender, describe(dtype, numel),
                           describe(dtype, target.numel()));
  }
  const int64_t begin = base::mutated(base::Mutation::count_pieces_alike)
                            ? numel * place.index
                            : std::accumulate(numels, numels + place.index, int64_t{0});
  copy_out(target, input + begin * int64_t(target.element_size()));
}

void Transport::scatter(at::Tensor& out, const std::vector<at::Tensor>& pieces, int root) {
  Staged staged;
  if (rank() == root) staged = stage_all(pieces, announce_sizes(numels_of(pieces)));
  Opening& opening = post(descriptor_of(Op::scatter, out, /*numel=*/0, root), staged);
  copy_piece(out, opening, {root, /*index=*/rank()});
  channel_.await_all(opening);
  finish(WaitForPeers::no);
}

void Transport::gather(std::vector<at::Tensor>& pieces, const at::Tensor& shard, int root) {
  const Staged staged = stage(shard, announce_sizes({shard.numel()}));
  Opening& opening = post(descriptor_of(Op::gather, shard, /*numel=*/0, root), staged);
  for (int peer = 0; rank() == root && peer < size(); ++peer) {
    copy_piece(pieces[size_t(peer)], opening, {peer, /*index=*/0});
  }
  channel_.await_all(opening);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

void Transport::all_to_all(std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& pieces) {
  const Staged staged = stage_all(pieces, announce_sizes(numels_of(pieces)));
  Opening& opening = post(descriptor_of(Op::all_to_all, pieces[0], /*numel=*/0), staged);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const int index = base::mutated(base::Mutation::take_own_index) ? peer : rank();
    copy_piece(outs[size_t(peer)], opening, {peer, index});
  }
  channel_.await_all(opening);
  finish(WaitForPeers::no);
}

void Transport::all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                                const std::vector<int64_t>& x_rows) {
  const int64_t row = c10::multiply_integers(x.sizes().slice(1));
  std::vector<int64_t> numels;
  for (const int64_t rows : x_rows) numels.push_back(rows * row);
  const Staged staged = stage(x, announce_sizes(numels));
  Opening& opening = post(descriptor_of(Op::all_to_all, x, /*numel=*/0), staged);
  std::vector<at::Tensor> blocks = out.split_with_sizes(out_rows);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_piece(blocks[size_t(peer)], opening, {peer, /*index=*/rank()});
  }
  channel_.await_all(opening);
  finish(staged.in_place ? WaitForPeers::yes : WaitForPeers::no);
}

}  // namespace shardwise::comm::shm
