// Rendezvous of ranks that share a c10d store (rendezvous.h).

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/base/error.h"
#include "shardwise/comm/node.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {
namespace {

std::string random_name() {
  std::random_device random;
  return fmt::format("torch/{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// Equal on all ranks that can share memory: node, namespace and user.
std::string local_node_key() {
  return fmt::format("{:016x} {}", node_id(), getuid());
}

/// This process's address for error messages.
std::string local_address() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return fmt::format("{} (pid {}, user {})", name, getpid(), getuid());
}

/// What one rank puts into the store: one line per field. Only rank 0 sets `job`.
struct StoreEntry {
  std::string node, address, job;

  explicit StoreEntry(const std::string& text) {
    std::istringstream lines(text);
    std::getline(lines, node) && std::getline(lines, address) && std::getline(lines, job);
  }
};

/// Returns every rank's entry, by rank. Errors: base::CommError naming the first missing rank.
std::vector<StoreEntry> read_entries(c10d::Store& store, const std::vector<std::string>& keys,
                                     const Options& options) {
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistStoreError&) {
    const auto is_missing = [&](const std::string& key) { return !store.check({key}); };
    const int missing = int(std::find_if(keys.begin(), keys.end(), is_missing) - keys.begin());
    const double limit_s = std::chrono::duration<double>(options.timeout).count();
    if (missing < options.size) {  // else the last entry was stored just now
      throw base::CommError({"connect", options.rank, missing, 0, limit_s, limit_s},
                            fmt::format("timed out waiting for rank {}", missing));
    }
  }
  std::vector<StoreEntry> entries;
  for (const std::string& key : keys) entries.emplace_back(store.get_to_str(key));
  return entries;
}

/// Returns rank 0's job name. Each rank counts its rendezvous in the store, so that a store that served an
/// earlier group (the program destroyed it and starts again) does not return that group's name.
std::string agree_on_job(c10d::Store& store, const Options& options) {
  const int64_t round = store.add(fmt::format("shardwise/visits/{}", options.rank), 1);
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(fmt::format("shardwise/{}/{}", round, rank));
  store.set(keys[size_t(options.rank)],
            local_node_key() + "\n" + local_address() + "\n" + (options.rank == 0 ? random_name() : ""));

  const std::vector<StoreEntry> entries = read_entries(store, keys, options);
  for (size_t rank = 1; rank < entries.size(); ++rank) {
    TORCH_CHECK_VALUE(entries[rank].node == entries[0].node,
                      "connect: ranks that share memory must be on one node, in one namespace and of one "
                      "user; got rank 0 on ",
                      entries[0].address, ", rank ", rank, " on ", entries[rank].address);
  }
  return entries[0].job;
}

}  // namespace

Rendezvous rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  Options options("", rank, size);
  options.timeout = timeout;
  check_options(options);
  options.job = agree_on_job(store, options);
  return rendezvous(options);
}

}  // namespace shardwise::comm::shm
