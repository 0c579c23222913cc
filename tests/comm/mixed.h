// Random programs of collective calls on several groups. One seed gives all ranks the same program; every
// result is checked (collective_calls.h). Each rank draws different delays between calls.
#pragma once
#include <map>
#include <random>

#include "tests/comm/collective_calls.h"

namespace shardwise::testing {

/// The group of all ranks first, then the groups of a mesh's axes.
using Groups = std::vector<TestGroup>;

/// Connects the group of all ranks. Collective.
Groups connect_world(const comm::shm::ConnectOptions& options);
/// Connects the group of all ranks and those of a {"dp", "tp"} mesh; tp is 2, or all ranks if t is odd.
/// Collective.
Groups connect_mesh(const comm::shm::ConnectOptions& options);

/// One rank's random program.
class Mixed {
 public:
  /// The number of elements of the largest message, unless the constructor is given another.
  static constexpr int64_t kLargest = 8000;

  enum class Calls { all, collectives };

  /// The functions below throw base::CommError, and std::runtime_error naming the call whose result is wrong.
  Mixed(const Groups& groups, unsigned seed, Calls calls = Calls::all, int64_t largest = kLargest);
  void run(int64_t steps);
  void step();
  /// Skips the next call.
  void skip() { draw(); }
  /// Returns the name of the last call; after one on the same group whose collective another call completes,
  /// "share_shard, then scatter".
  const std::string& call() const { return call_; }

 private:
  struct Drawn {
    const CollectiveCall& call;
    Case arguments;
  };
  Drawn draw();
  void sleep_randomly();

  const Groups& groups_;
  std::vector<CollectiveCall> calls_;
  int64_t largest_;
  std::string call_;
  std::map<const void*, std::string> deferring_;  // by backend: the last call, if it is such a one
  std::mt19937 plan_, delays_;                    // the calls, equal on all ranks; this rank's delays
};

}  // namespace shardwise::testing
