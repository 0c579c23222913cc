#include "shardwise/comm/shm/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/base/random.h"
#include "shardwise/comm/c10d_arguments.h"
#include "shardwise/comm/rendezvous.h"

namespace shardwise::comm::shm {
namespace {

std::string random_name() {
  return fmt::format("torch/{:016x}{:016x}", base::random_bits(), base::random_bits());
}

/// What one rank puts into the store: its PeerInfo, then the job's name, which only rank 0 sets.
struct StoreEntry {
  PeerInfo info;
  std::string job;

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> bytes(sizeof(info) + job.size());
    std::memcpy(bytes.data(), &info, sizeof(info));
    job.copy(reinterpret_cast<char*>(bytes.data()) + sizeof(info), job.size());
    return bytes;
  }
  static StoreEntry of(const std::vector<uint8_t>& bytes, const ConnectDeadline& deadline) {
    StoreEntry entry;
    if (bytes.size() < sizeof(entry.info))
      deadline.fail(/*peer=*/-1, "the ranks run different versions of this program [SW0336]");
    std::memcpy(&entry.info, bytes.data(), sizeof(entry.info));
    entry.info.end_names();
    entry.job.assign(bytes.begin() + sizeof(entry.info), bytes.end());
    return entry;
  }
  bool can_share_memory(const StoreEntry& other) const {
    return info.node == other.info.node && info.user == other.info.user;
  }
};

/// Returns every rank's entry, by rank. Errors: base::CommError naming the first missing rank.
std::vector<StoreEntry> read_entries(c10d::Store& store, const std::vector<std::string>& keys,
                                     const ConnectOptions& options) {
  const ConnectDeadline deadline(options.rank, options.timeout);
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistStoreError&) {
    const auto is_missing = [&](const std::string& key) { return !store.check({key}); };
    const int missing = int(std::find_if(keys.begin(), keys.end(), is_missing) - keys.begin());
    if (missing < options.size) deadline.fail_missing(missing);  // else the last entry was stored just now
  }
  std::vector<StoreEntry> entries;
  for (const std::string& key : keys) entries.push_back(StoreEntry::of(store.get(key), deadline));
  return entries;
}

/// Returns rank 0's entry, whose job name and secret apply to all. Each rank counts its rendezvous in the
/// store, so that a store that served an earlier group (the program destroyed it and starts again) does not
/// return that group's name.
StoreEntry agree_on_job(c10d::Store& store, const ConnectOptions& options) {
  const int64_t round = store.add(fmt::format("shardwise/visits/{}", options.rank), 1);
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(fmt::format("shardwise/{}/{}", round, rank));
  StoreEntry local{local_peer_info(/*group=*/"", options.rank, options.size), ""};
  if (options.rank == 0) local.job = random_name();
  local.info.secret = base::Secret::random();
  store.set(keys[size_t(options.rank)], local.bytes());

  const std::vector<StoreEntry> entries = read_entries(store, keys, options);
  for (size_t rank = 1; rank < entries.size(); ++rank) {
    TORCH_CHECK_VALUE(entries[rank].can_share_memory(entries[0]),
                      "connect: ranks that share memory must be on one node, in one namespace and of one "
                      "user; got rank 0 on ",
                      entries[0].info.address(), ", rank ", rank, " on ", entries[rank].info.address(),
                      " [SW0297]");
  }
  return entries[0];
}

}  // namespace

Rendezvous rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  ConnectOptions options("", rank, size);
  options.timeout = base::capped(timeout);
  check_options(options);
  const StoreEntry agreed = agree_on_job(store, options);
  options.job = agreed.job;
  options.secret = agreed.info.secret;
  return rendezvous(options);
}

c10::DataPtr SymmetricHeapAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::kCPU};
  auto block = std::make_unique<HeapBlock>(heap_, int64_t(bytes));
  std::byte* data = block->data();
  const auto free = [](void* context) { delete static_cast<HeapBlock*>(context); };
  return {data, block.release(), free, c10::kCPU};
}

Backend::Pointer Backend::connect(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<Backend>(
      std::make_shared<Transport>(rendezvous_via_store(store, rank, size, timeout), rank, timeout));
}

Backend::Pointer Backend::split(const StorePtr& store, const std::vector<int>& ranks,
                                const OptionsPtr& options) {
  const auto local = std::ranges::find(ranks, rank_);
  if (local == ranks.end()) return nullptr;
  return connect(*store, static_cast<int>(local - ranks.begin()), static_cast<int>(ranks.size()),
                 options->timeout);
}

Backend::Pointer Backend::merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                                const int& size) {
  return connect(*store, rank, size, options->timeout);
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return transport_->empty({int64_t(size)}, c10::typeMetaToScalarType(options.dtype()));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) {
  const bool has_limit = has_timeout(options.timeout);
  transport_->monitored_barrier(has_limit ? base::capped(options.timeout) : transport_->channel().timeout(),
                                name_all);
}

}  // namespace shardwise::comm::shm
