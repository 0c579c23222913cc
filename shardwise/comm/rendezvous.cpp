#include "shardwise/comm/rendezvous.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

#include "shardwise/base/error.h"
#include "shardwise/base/hash.h"
#include "shardwise/base/random.h"

namespace shardwise::comm {
namespace {

uint64_t process_token() {
  static const uint64_t token = base::random_bits();
  return token + uint64_t(getpid());  // a forked child inherits the static
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

/// Returns "net:<number>"; the number identifies a namespace of the machine.
std::string name_space(const std::string& kind) {
  struct stat found {};
  const bool exists = stat(("/proc/self/ns/" + kind).c_str(), &found) == 0;
  return kind + ":" + std::to_string(exists ? found.st_ino : 0);
}

}  // namespace

uint64_t machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return base::hash_of(boot.empty() ? host_name() : boot);
}

uint64_t node_id() {
  return base::hash_of(std::to_string(machine_id()) + name_space("net") + name_space("pid"));
}

std::string PeerInfo::address() const {
  return host + fmt::format(" (pid {}, user {})", pid, user);
}

PeerInfo local_peer_info(const std::string& group, int rank, int size) {
  PeerInfo info;
  info.rank = info.job_rank = rank;
  info.size = size;
  info.pid = getpid();
  info.user = getuid();
  info.process = process_token();
  info.node = node_id();
  info.machine = machine_id();
  sched_getaffinity(0, sizeof(info.cores), &info.cores);
  group.copy(info.group, sizeof(info.group) - 1);
  host_name().copy(info.host, sizeof(info.host) - 1);
  return info;
}

std::string disagreement(const PeerInfo& ours, const PeerInfo& theirs) {
  if (ours.members != theirs.members || std::string_view(ours.group) != theirs.group) {
    return fmt::format("rank {} of the job creates group {}, rank {} group {}{} [SW0315]", ours.job_rank,
                       ours.group, theirs.job_rank, theirs.group,
                       ours.members == theirs.members ? "" : " of other ranks");
  }
  if (ours.size != theirs.size || theirs.rank < 0 || theirs.rank >= ours.size)
    return fmt::format("rank {} of {} connected to a job of {} ranks [SW0327]", theirs.rank, theirs.size,
                       ours.size);
  return "";
}

MachineShare machine_share(const std::vector<PeerInfo>& ranks, uint64_t machine) {
  MachineShare share;
  cpu_set_t cores{};
  for (const PeerInfo& rank : ranks) {
    if (rank.machine != machine) continue;
    ++share.ranks;
    CPU_OR(&cores, &cores, &rank.cores);
  }
  share.cores = std::max(1, CPU_COUNT(&cores));
  return share;
}

void ConnectDeadline::fail(int peer, const std::string& what) const {
  const std::chrono::duration<double> waited = elapsed(), limit = timeout_;
  throw base::CommError({"connect", rank_, peer, /*sequence=*/0, waited.count(), limit.count()}, what);
}

void ConnectDeadline::fail_missing(int peer) const {
  fail(peer, fmt::format("timed out waiting for rank {} [SW0325]", peer));
}

}  // namespace shardwise::comm
