// What the handshakes of all backends share: what a rank announces to the others of its group, the check that
// the ranks agree, and the error of a rank that cannot connect.
#pragma once
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/base/clock.h"
#include "shardwise/base/secret.h"

namespace shardwise::comm {

/// Returns an id that is equal for processes of one running kernel, whose ranks share its processors.
uint64_t machine_id();

/// Returns an id that is equal for processes that comm/shm can connect: processes of one machine that see
/// each other's abstract sockets and process ids. Two containers on one machine are usually two nodes.
uint64_t node_id();

/// One rank's description of itself. Plain bytes: all ranks run this program.
struct PeerInfo {
  int32_t rank = 0, size = 0;  // in the group
  int32_t job_rank = 0;        // in the job
  int32_t pid = 0;
  uint32_t user = 0;
  uint64_t process = 0;  // a random number per process: pids of two pid namespaces may be equal
  uint64_t node = 0;     // node_id of the rank: equal where ranks can share memory
  uint64_t machine = 0;  // machine_id of the rank
  uint64_t members = 0;  // hash of the ranks of the job that form the group; 0 if the name identifies it
  cpu_set_t cores{};     // the cores that this rank may run on
  char group[64] = {};   // the group's name
  char host[64] = {};    // the name of the rank's node
  base::Secret secret;   // of the job

  /// Terminates the names of a PeerInfo that was received, whose sender may have been another program.
  void end_names() { group[sizeof(group) - 1] = host[sizeof(host) - 1] = '\0'; }
  /// Returns "host (pid 123, user 0)".
  std::string address() const;
  /// Returns whether both ranks are threads of one process.
  bool is_same_process(const PeerInfo& other) const { return process == other.process && pid == other.pid; }
};

/// Returns what this process announces as rank `rank` of `size` of a group.
PeerInfo local_peer_info(const std::string& group, int rank, int size);
/// Returns why two ranks cannot be in one group: other names, members or sizes; "" if they can.
std::string disagreement(const PeerInfo& ours, const PeerInfo& theirs);

/// The ranks of a group on one machine, and the number of cores that at least one of them may run on.
struct MachineShare {
  int ranks = 0, cores = 0;
};
MachineShare machine_share(const std::vector<PeerInfo>& ranks, uint64_t machine);

/// The time limit of a rendezvous, from construction, and the error of connecting.
class ConnectDeadline {
 public:
  ConnectDeadline(int rank, std::chrono::milliseconds timeout)
      : rank_(rank), timeout_(base::capped(timeout)) {}

  /// Returns the time that is left, at least 0.
  std::chrono::milliseconds left() const {
    return std::max(timeout_ - std::chrono::duration_cast<std::chrono::milliseconds>(elapsed()),
                    std::chrono::milliseconds(0));
  }
  bool is_over() const { return left().count() == 0; }
  /// Returns the rank that waits.
  int rank() const { return rank_; }
  /// Throws base::CommError of "connect" with `peer` as the cause (-1: no single rank).
  [[noreturn]] void fail(int peer, const std::string& what) const;
  /// Throws the error of a rank that has not connected in time.
  [[noreturn]] void fail_missing(int peer) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration elapsed() const { return Clock::now() - start_; }

  int rank_;
  std::chrono::milliseconds timeout_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace shardwise::comm
