// What the ranks of a group tell each other about blocks that all of them see: put a signal, wait for one,
// meet in a barrier.
//
// Every rank has a pad, an array of words by channel and sender: 0, or 1 from when that rank has put its
// signal until it is taken. Channels keep signals of different purposes apart. A wait sleeps on the rank's
// doorbell, and fails as the group's collectives do (channel.h).
#pragma once
#include <atomic>
#include <vector>

#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {

/// Where the ranks of a group find each other's pads. Other groups may meet over the same: senders are told
/// apart by their rank in the home of all of them. Groups that share two ranks use different channels.
struct Pads {
  std::vector<void*> places;    // by rank of the group
  std::vector<int> home_ranks;  // likewise
  int home_size;
  size_t bytes;  // of each; zero at first
  int64_t channels() const { return int64_t(bytes / sizeof(uint32_t)) / home_size; }
};

/// From the thread of the group's collectives. A limit of 0 is the group's timeout, which is the most too.
/// Errors: c10::ValueError for a rank or channel that is not there, or after the group's end; base::CommError
/// when the peer died, left, or did not come in time.
class Signals {
 public:
  using Limit = std::chrono::milliseconds;

  Signals(Channel& group, Pads pads) : group_(group), pads_(std::move(pads)) {}

  /// Waits only for the signal put before to be taken.
  void put(int to, int channel, Limit limit);
  void wait(int from, int channel, Limit limit);
  void barrier(int channel, Limit limit);

 private:
  using Word = std::atomic_ref<uint32_t>;

  Attempt begin(std::string_view op, int peer, int channel, Limit limit);
  Word word(int owner, int sender, int channel) const;
  void put(const Attempt& attempt, int channel);
  void take(const Attempt& attempt, int channel);
  void turn(const Attempt& attempt, Word word, uint32_t before, uint32_t after);

  Channel& group_;
  Pads pads_;
  uint64_t calls_ = 0;
};

}  // namespace shardwise::comm::shm
