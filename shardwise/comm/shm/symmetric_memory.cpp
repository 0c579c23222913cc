#include "shardwise/comm/shm/symmetric_memory.h"

#include <algorithm>

namespace shardwise::comm::shm {
namespace {

/// One rank's description of its block, in the payload of its slot. The descriptor has its size and offset.
struct BlockInfo {
  uint64_t home;  // identity of the home group (control.h)
  uint64_t pad_bytes;
  int32_t home_rank;  // this rank's rank in the home group
};

uint64_t identity_of(Transport& transport) {
  return transport.channel().control(/*rank=*/0).identity;
}

Arrivals& post_block_info(const SymmetricGroups& groups, const SymmetricBlock& block) {
  Channel& channel = groups.group->channel();
  const BlockInfo info{identity_of(*groups.home), block.pad_bytes(), groups.home->rank()};
  Descriptor descriptor;
  descriptor.op = Op::share_shard;
  descriptor.dtype = static_cast<int8_t>(c10::kByte);
  descriptor.numel = int64_t(block.bytes());
  descriptor.split = 0x73796d6d;  // "symm": this collective shares no shard
  descriptor.offset = uint64_t(block.buffer() - groups.home->channel().base(groups.home->rank()));
  Arrivals* arrivals = nullptr;
  groups.run_blocking([&] {  // posting waits, too, for peers that have not arrived at a deferred collective
    std::memcpy(channel.next_payload(), &info, sizeof(info));
    arrivals = &channel.post(descriptor);
    channel.wait_for_arrivals(*arrivals);
  });
  return *arrivals;
}

std::vector<BlockInfo> read_block_infos(Channel& channel, const Arrivals& arrivals) {
  std::vector<BlockInfo> all(size_t(channel.size()));
  for (int rank = 0; rank < channel.size(); ++rank)
    std::memcpy(&all[size_t(rank)], channel.payload(arrivals, rank), sizeof(BlockInfo));
  channel.depart();
  return all;
}

void check_same_group_and_pad(const BlockInfo& first, const BlockInfo& info, int rank) {
  TORCH_CHECK_VALUE(
      info.home == first.home,
      "rendezvous: all ranks must pass memory of the same group; got another group's from rank ", rank,
      " than from rank 0; pass the group's name when allocating");
  TORCH_CHECK_VALUE(info.pad_bytes == first.pad_bytes,
                    "rendezvous: signal pads must have the same size on all ranks; got ", info.pad_bytes,
                    " bytes from rank ", rank, ", ", first.pad_bytes, " from rank 0");
}

Signals::Limit limit_of(size_t timeout_ms) {
  constexpr size_t kMax = size_t{1} << 52;
  return Signals::Limit(int64_t(std::min(timeout_ms, kMax)));
}

}  // namespace

SymmetricMemory::SymmetricMemory(SymmetricGroups groups, std::shared_ptr<SymmetricBlock> block,
                                 std::vector<void*> buffers, Pads pads)
    : groups_(std::move(groups)),
      block_(std::move(block)),
      buffers_(std::move(buffers)),
      pads_(std::move(pads)),
      signals_(groups_.group->channel(), pads_) {}

// Callers assume that a pad has the size that c10d reports, which can be set.
std::vector<void*> SymmetricMemory::get_signal_pad_ptrs() {
  const size_t expected = c10d::symmetric_memory::get_signal_pad_size();
  TORCH_CHECK_VALUE(expected <= pads_.bytes,
                    "symmetric memory: the signal pad size must be set before allocating; got ", expected,
                    " bytes after allocating with ", pads_.bytes);
  return pads_.addresses;
}

void SymmetricMemory::barrier(int channel, size_t timeout_ms) {
  groups_.run_blocking([&] { signals_.barrier(channel, limit_of(timeout_ms)); });
}

void SymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms) {
  groups_.run_blocking([&] { signals_.put(dst_rank, channel, limit_of(timeout_ms)); });
}

void SymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms) {
  groups_.run_blocking([&] { signals_.wait(src_rank, channel, limit_of(timeout_ms)); });
}

// All ranks see the same errors, after the arrival barrier.
c10::intrusive_ptr<SymmetricMemory> symmetric_rendezvous(SymmetricGroups groups,
                                                         std::shared_ptr<SymmetricBlock> block) {
  Channel &group = groups.group->channel(), &home = groups.home->channel();
  const Arrivals& arrivals = post_block_info(groups, *block);
  const std::vector<BlockInfo> all = read_block_infos(group, arrivals);
  std::vector<void*> buffers;
  Pads pads{{}, {}, home.size(), block->pad_bytes()};
  for (int rank = 0; rank < group.size(); ++rank) {
    const BlockInfo& info = all[size_t(rank)];
    check_same_group_and_pad(all[0], info, rank);
    std::byte* buffer = home.base(info.home_rank) + arrivals.descriptors[size_t(rank)].offset;
    buffers.push_back(buffer);
    pads.addresses.push_back(buffer + block->pad_offset());
    pads.home_ranks.push_back(info.home_rank);
  }
  return c10::make_intrusive<SymmetricMemory>(std::move(groups), std::move(block), std::move(buffers),
                                              std::move(pads));
}

}  // namespace shardwise::comm::shm
