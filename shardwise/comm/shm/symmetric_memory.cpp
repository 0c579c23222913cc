#include "shardwise/comm/shm/symmetric_memory.h"

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <unordered_map>

#include "shardwise/comm/shm/backend.h"

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
  channel.check_member("rendezvous");
  const BlockInfo info{identity_of(*groups.home), block.pad_bytes(), groups.home->rank()};
  Descriptor descriptor;
  descriptor.op = Op::share_shard;
  descriptor.dtype = static_cast<int8_t>(c10::kByte);
  descriptor.numel = int64_t(block.bytes());
  descriptor.split = 0x73796d6d;  // "symm": this collective shares no shard
  descriptor.offset = uint64_t(block.buffer() - groups.home->channel().base(groups.home->rank()));
  Arrivals* arrivals = nullptr;
  groups.run_blocking([&] {  // posting waits, too, for peers that have not arrived at a deferred collective
    std::memcpy(channel.next_payload(descriptor.op), &info, sizeof(info));
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
      " than from rank 0; pass the group's name when allocating [SW0515]");
  TORCH_CHECK_VALUE(info.pad_bytes == first.pad_bytes,
                    "rendezvous: signal pads must have the same size on all ranks; got ", info.pad_bytes,
                    " bytes from rank ", rank, ", ", first.pad_bytes, " from rank 0 [SW0516]");
}

Signals::Limit limit_of(size_t timeout_ms) {
  constexpr size_t kMax = size_t{1} << 52;
  return Signals::Limit(int64_t(std::min(timeout_ms, kMax)));
}

}  // namespace

void Signals::put(int to, int channel, Limit limit) {
  const GroupGuard::Call call(&group_, "put_signal");
  put(start_call("put_signal", to, channel, limit), channel);
}

void Signals::wait(int from, int channel, Limit limit) {
  const GroupGuard::Call call(&group_, "wait_signal");
  consume(start_call("wait_signal", from, channel, limit), channel);
}

// A rank that reaches the next barrier early waits in `put` until its last signal is consumed. The limit
// applies to all waits together.
void Signals::barrier(int channel, Limit limit) {
  const GroupGuard::Call call(&group_, "symmetric_barrier");
  WaitContext context = start_call("symmetric_barrier", group_.rank(), channel, limit);
  const auto with_peers = [&](void (Signals::*act)(const WaitContext&, int)) {
    for (int step = 1; step < group_.size(); ++step) {
      context.peer = (group_.rank() + step) % group_.size();
      (this->*act)(context, channel);
    }
  };
  with_peers(&Signals::put);
  with_peers(&Signals::consume);
}

WaitContext Signals::start_call(std::string_view op, int peer, int channel, Limit limit) {
  const int ranks = group_.size();
  TORCH_CHECK_VALUE(peer >= 0 && peer < ranks, op, ": rank must be in [0, ", ranks, "); got ", peer,
                    " [SW0478]");
  TORCH_CHECK_VALUE(channel >= 0 && channel < pads_.channels(), op, ": channel must be in [0, ",
                    pads_.channels(), ") of a signal pad of ", pads_.bytes, " bytes; got ", channel,
                    " [SW0517]");
  const Limit max_limit = group_.timeout();
  const WaitContext context{op, ++calls_, peer, limit.count() > 0 ? std::min(limit, max_limit) : max_limit};
  group_.check_usable(context);
  return context;
}

Signals::Word Signals::word(int owner, int sender, int channel) const {
  auto* words = static_cast<uint32_t*>(pads_.addresses[size_t(owner)]);
  return Word(words[int64_t(channel) * pads_.home_size + pads_.home_ranks[size_t(sender)]]);
}

void Signals::put(const WaitContext& context, int channel) {
  exchange(context, word(/*owner=*/context.peer, /*sender=*/group_.rank(), channel), /*before=*/0,
           /*after=*/1);
}

void Signals::consume(const WaitContext& context, int channel) {
  exchange(context, word(/*owner=*/group_.rank(), /*sender=*/context.peer, channel), /*before=*/1,
           /*after=*/0);
}

// Rings the peer in both directions: it may wait for the signal, or for the word to put its next signal.
void Signals::exchange(const WaitContext& context, Word word, uint32_t before, uint32_t after) {
  bool exchanged = false;
  const auto ready = [&] {
    uint32_t seen = before;
    exchanged = exchanged || word.compare_exchange_strong(seen, after);
    return exchanged;
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) { return peer != context.peer || ready(); };
  Flag& doorbell = *pads_.doorbells[size_t(group_.rank())];
  if (!ready()) group_.wait_for({context, doorbell, ready, tolerates_loss_of});
  ring(*pads_.doorbells[size_t(context.peer)]);
}

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
                    " bytes after allocating with ", pads_.bytes, " [SW0518]");
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
  const GroupGuard::Call call(&group, "rendezvous");
  const Arrivals& arrivals = post_block_info(groups, *block);
  const std::vector<BlockInfo> all = read_block_infos(group, arrivals);
  std::vector<void*> buffers;
  Pads pads{{}, {}, {}, home.size(), block->pad_bytes()};
  for (int rank = 0; rank < group.size(); ++rank) {
    const BlockInfo& info = all[size_t(rank)];
    check_same_group_and_pad(all[0], info, rank);
    std::byte* buffer = home.base(info.home_rank) + arrivals.descriptors[size_t(rank)].offset;
    buffers.push_back(buffer);
    pads.addresses.push_back(buffer + block->pad_offset());
    pads.home_ranks.push_back(info.home_rank);
    pads.doorbells.push_back(&home.control(info.home_rank).doorbell);
  }
  return c10::make_intrusive<SymmetricMemory>(std::move(groups), std::move(block), std::move(buffers),
                                              std::move(pads));
}

namespace {

using GroupName = std::optional<std::string>;

constexpr const char* kName = "shardwise";
/// torch.distributed's name for the default group.
constexpr const char* kDefaultGroup = "0";

// c10d returns its own interface, which another backend may implement.
std::shared_ptr<Transport> transport_of(const std::string& group_name) {
  const auto backend = c10d::resolve_process_group(group_name)->getBackend(c10::kCPU);
  const auto* ours = dynamic_cast<Backend*>(backend.get());
  TORCH_CHECK_VALUE(ours != nullptr, "symmetric memory: the backend of the group must be ", kName,
                    "; got group ", group_name, " of backend ", backend->getBackendName(), " [SW0519]");
  return ours->transport();
}

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  using Handle = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

  explicit SymmetricAllocator(RunBlocking run_blocking) : run_blocking_(run_blocking) {}

  void* alloc(size_t size, int device_idx, const GroupName& group_name) override;
  void free(void* ptr) override;
  size_t get_alloc_size(void* ptr) override;
  Handle rendezvous(void* ptr, const GroupName& group_name) override;
  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::kCPU; }
  std::string name() override { return kName; }

 private:
  struct Allocation {
    std::shared_ptr<SymmetricBlock> block;
    std::weak_ptr<Transport> home;                             // tensors do not keep their group alive
    std::vector<c10::intrusive_ptr<SymmetricMemory>> handles;  // one per group
  };

  Allocation& find(void* ptr);
  Allocation copy_of(void* ptr);

  RunBlocking run_blocking_;
  std::mutex mutex_;  // not held during a collective, because ranks may be threads
  std::unordered_map<void*, Allocation> allocations_;
};

void* SymmetricAllocator::alloc(size_t size, int, const GroupName& group_name) {
  const std::shared_ptr<Transport> home = transport_of(group_name.value_or(kDefaultGroup));
  auto block = std::make_shared<SymmetricBlock>(home->channel().heap(), size,
                                                c10d::symmetric_memory::get_signal_pad_size());
  void* ptr = block->buffer();
  const std::lock_guard lock(mutex_);
  allocations_.emplace(ptr, Allocation{std::move(block), home, {}});
  return ptr;
}

// Destroys the allocation outside the lock, because it may be the last owner of a group.
void SymmetricAllocator::free(void* ptr) {
  std::unique_lock lock(mutex_);
  const auto removed = allocations_.extract(ptr);
  lock.unlock();
}

size_t SymmetricAllocator::get_alloc_size(void* ptr) {
  const std::lock_guard lock(mutex_);
  return find(ptr).block->bytes();
}

// A second rendezvous of the same group is not collective: it returns the handle of the first.
SymmetricAllocator::Handle SymmetricAllocator::rendezvous(void* ptr, const GroupName& group_name) {
  const Allocation allocation = copy_of(ptr);
  SymmetricGroups groups{allocation.home.lock(), nullptr, run_blocking_};
  TORCH_CHECK_VALUE(groups.home,
                    "rendezvous: the group that the memory was allocated for must still exist [SW0520]");
  groups.group = group_name ? transport_of(*group_name) : groups.home;
  for (const auto& handle : allocation.handles) {
    if (handle->group() == groups.group) return handle;
  }
  const auto handle = symmetric_rendezvous(std::move(groups), allocation.block);
  const std::lock_guard lock(mutex_);
  find(ptr).handles.push_back(handle);
  return handle;
}

SymmetricAllocator::Allocation SymmetricAllocator::copy_of(void* ptr) {
  const std::lock_guard lock(mutex_);
  return find(ptr);
}

SymmetricAllocator::Allocation& SymmetricAllocator::find(void* ptr) {
  const auto found = allocations_.find(ptr);
  TORCH_CHECK_VALUE(
      found != allocations_.end(),
      "symmetric memory: the storage must be allocated by symmetric memory; got another one [SW0521]");
  return found->second;
}

}  // namespace

void register_symmetric_memory(RunBlocking run_blocking) {
  if (c10d::symmetric_memory::get_backend(c10::kCPU) == kName) return;
  const auto allocator = c10::make_intrusive<SymmetricAllocator>(run_blocking);
  c10d::symmetric_memory::register_availability(kName, allocator);
  if (!c10d::symmetric_memory::has_allocator(c10::kCPU))
    c10d::symmetric_memory::register_allocator(c10::kCPU, allocator);
}

}  // namespace shardwise::comm::shm
