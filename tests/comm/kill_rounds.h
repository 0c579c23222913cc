// Rounds of random programs, in each of which a test kills or stops one rank. The other processes survive the
// rounds: each connects a new group with the process that replaces the victim.
#pragma once
#include <chrono>

#include "tests/comm/mixed.h"

namespace shardwise::testing {

/// Returns the time of a clock that all processes of the machine share.
inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// One round. The ranks and the test draw the same one from a campaign's seed.
struct KillRound {
  enum class Fault { kill, stop };
  KillRound(unsigned seed, int number, int ranks);

  int number, victim;
  Fault fault;
  unsigned program;  // the seed of its calls
  bool on_mesh;      // on the groups of a mesh as well
  int delay_us;      // of the fault, after all ranks have connected

  /// Every fifth fault is a stop. Its round has a short timeout, one group, and no messages, whose sender may
  /// itself be waiting for another rank.
  bool is_stop() const { return fault == Fault::stop; }
  static constexpr double kStopTimeout = 1;  // seconds

  /// Returns the names of the rendezvous of its world, of which the first ends when all processes have
  /// started.
  std::string start_of(const std::string& job) const { return world_of(job) + "-start"; }
  std::string world_of(const std::string& job) const { return job + "-" + std::to_string(number); }
};

}  // namespace shardwise::testing
