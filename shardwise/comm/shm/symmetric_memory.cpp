#include "shardwise/comm/shm/symmetric_memory.h"

#include <algorithm>

namespace shardwise::comm::shm {
namespace {

/// What a rank says of its block, in the payload of its slot; size and place stand in the descriptor.
struct Introduction {
  uint64_t home;  // its identity (control.h)
  uint64_t pad_bytes;
  int32_t home_rank;  // of the rank there
};

uint64_t identity_of(Transport& transport) {
  return transport.channel().control(/*rank=*/0).identity;
}

Opening& introduce(const Parties& parties, const SymmetricBlock& own) {
  Channel& channel = parties.group->channel();
  const Introduction introduction{identity_of(*parties.home), own.pad_bytes(), parties.home->rank()};
  Descriptor descriptor;
  descriptor.op = Op::share_shard;
  descriptor.dtype = static_cast<int8_t>(c10::kByte);
  descriptor.numel = int64_t(own.bytes());
  descriptor.split = 0x73796d6d;  // "symm": an exposure of no shard
  descriptor.offset = uint64_t(own.buffer() - parties.home->channel().base(parties.home->rank()));
  Opening* opening = nullptr;
  parties.waiting([&] {  // announcing waits, too, for who has not come to the exposure before
    std::memcpy(channel.next_payload(), &introduction, sizeof(introduction));
    opening = &channel.post(descriptor);
    channel.await_all(*opening);
  });
  return *opening;
}

std::vector<Introduction> introductions(Channel& channel, const Opening& opening) {
  std::vector<Introduction> all(size_t(channel.size()));
  for (int rank = 0; rank < channel.size(); ++rank)
    std::memcpy(&all[size_t(rank)], channel.payload(opening, rank), sizeof(Introduction));
  channel.close();
  return all;
}

void check_alike(const Introduction& first, const Introduction& theirs, int rank) {
  TORCH_CHECK_VALUE(theirs.home == first.home,
                    "rendezvous: all ranks bring memory of one group; got another one's from rank ", rank,
                    " than from rank 0; give the group's name when allocating");
  TORCH_CHECK_VALUE(theirs.pad_bytes == first.pad_bytes,
                    "rendezvous: all ranks bring signal pads of one size; got ", theirs.pad_bytes,
                    " bytes from rank ", rank, ", ", first.pad_bytes, " from rank 0");
}

Signals::Limit limit_of(size_t timeout_ms) {
  constexpr size_t kMost = size_t{1} << 52;
  return Signals::Limit(int64_t(std::min(timeout_ms, kMost)));
}

}  // namespace

SymmetricMemory::SymmetricMemory(Parties parties, std::shared_ptr<SymmetricBlock> own,
                                 std::vector<void*> buffers, Pads pads)
    : parties_(std::move(parties)),
      own_(std::move(own)),
      buffers_(std::move(buffers)),
      pads_(std::move(pads)),
      signals_(parties_.group->channel(), pads_) {}

// Who calls this takes a pad to be as long as c10d says, which is settable.
std::vector<void*> SymmetricMemory::get_signal_pad_ptrs() {
  const size_t taken = c10d::symmetric_memory::get_signal_pad_size();
  TORCH_CHECK_VALUE(taken <= pads_.bytes,
                    "symmetric memory: the size of signal pads is set before allocating; got ", taken,
                    " bytes after ", pads_.bytes);
  return pads_.places;
}

void SymmetricMemory::barrier(int channel, size_t timeout_ms) {
  parties_.waiting([&] { signals_.barrier(channel, limit_of(timeout_ms)); });
}

void SymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms) {
  parties_.waiting([&] { signals_.put(dst_rank, channel, limit_of(timeout_ms)); });
}

void SymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms) {
  parties_.waiting([&] { signals_.wait(src_rank, channel, limit_of(timeout_ms)); });
}

// What can be wrong is seen by all ranks alike, after all have met.
c10::intrusive_ptr<SymmetricMemory> rendezvous(Parties parties, std::shared_ptr<SymmetricBlock> own) {
  Channel &group = parties.group->channel(), &home = parties.home->channel();
  const Opening& opening = introduce(parties, *own);
  const std::vector<Introduction> all = introductions(group, opening);
  std::vector<void*> buffers;
  Pads pads{{}, {}, home.size(), own->pad_bytes()};
  for (int rank = 0; rank < group.size(); ++rank) {
    const Introduction& theirs = all[size_t(rank)];
    check_alike(all[0], theirs, rank);
    std::byte* buffer = home.base(theirs.home_rank) + opening.descriptors[size_t(rank)].offset;
    buffers.push_back(buffer);
    pads.places.push_back(buffer + own->pad_offset());
    pads.home_ranks.push_back(theirs.home_rank);
  }
  return c10::make_intrusive<SymmetricMemory>(std::move(parties), std::move(own), std::move(buffers),
                                              std::move(pads));
}

}  // namespace shardwise::comm::shm
