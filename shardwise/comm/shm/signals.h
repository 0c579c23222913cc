// Signals between the ranks of a group about symmetric memory: put a signal, wait for a signal, barrier.
//
// Every rank has a signal pad, an array of words by channel and sender. A word is 1 from when the sender puts
// its signal until the receiver consumes it, else 0. Channels separate independent signals. A wait sleeps on
// the rank's doorbell, and fails as the group's collectives do (channel.h).
#pragma once
#include <atomic>
#include <vector>

#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {

/// The signal pads of the ranks of a group. Several groups may use the same pads: senders are identified by
/// their rank in the home group (symmetric_memory.h). Groups that share two ranks use different channels.
struct Pads {
  std::vector<void*> addresses;  // by rank of the group
  std::vector<int> home_ranks;   // rank in the home group, by rank of the group
  int home_size;
  size_t bytes;  // of each pad; initially zeroed
  int64_t channels() const { return int64_t(bytes / sizeof(uint32_t)) / home_size; }
};

/// The signals of one group. Called from the thread of the group's collectives. A limit of 0 means the
/// group's timeout, which is also the maximum. Errors: c10::ValueError if a rank or channel is out of range,
/// or after the group's shutdown; base::CommError if the peer exited, left, or timed out.
class Signals {
 public:
  using Limit = std::chrono::milliseconds;

  Signals(Channel& group, Pads pads) : group_(group), pads_(std::move(pads)) {}

  /// Puts a signal. Waits only until rank `to` has consumed the previous one.
  void put(int to, int channel, Limit limit);
  /// Waits for a signal of rank `from` and consumes it.
  void wait(int from, int channel, Limit limit);
  void barrier(int channel, Limit limit);

 private:
  using Word = std::atomic_ref<uint32_t>;

  WaitContext start_call(std::string_view op, int peer, int channel, Limit limit);
  Word word(int owner, int sender, int channel) const;
  void put(const WaitContext& context, int channel);
  void consume(const WaitContext& context, int channel);
  void exchange(const WaitContext& context, Word word, uint32_t before, uint32_t after);

  Channel& group_;
  Pads pads_;
  uint64_t calls_ = 0;
};

}  // namespace shardwise::comm::shm
