// What other ranks have sent to this one: takes it out of their mailboxes, in order, and gives it to the
// receives that were posted (docs/adr/0016).
//
// A message goes to the first posted receive that it fits, so that receives of one source and tag are served
// in the order of their posting, whichever is waited for. One that fits none is kept in private memory. All
// from the thread of the collectives; only the last reference to a Receive may go on any.
#pragma once
#include <ATen/core/Tensor.h>

#include <list>
#include <memory>

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {

/// A message where it lies, in its sender's memory or kept.
struct Message {
  int source;
  int64_t tag;
  int64_t numel;
  int8_t dtype;
  const std::byte* data;
  int64_t bytes() const;
};

/// The place of a receive among those posted. Dropped undone it gives the place up, and its target is not
/// written.
struct Receive {
  at::Tensor target;
  int source;  // or kAnySource
  int64_t tag;
  uint64_t number;  // among this rank's receives
  int sender = -1;  // whose message it got; -1 until then

  bool done() const { return sender >= 0; }
  bool fits(const Message& message) const {
    return tag == message.tag && (source == kAnySource || source == message.source);
  }
};

class Inbox {
 public:
  /// `channel` waits for nothing after this.
  explicit Inbox(Channel& channel) : channel_(channel) {
    channel.while_waiting([this] { relieve(); });
  }
  Inbox(const Inbox&) = delete;

  /// `target`: a CPU tensor of any strides. Done at once when its message was kept.
  /// Errors: c10::ValueError after the end of the group, base::CommError as `wait`.
  std::shared_ptr<Receive> post(const at::Tensor& target, int source, int64_t tag);
  /// Errors: base::CommError when the message has another size or dtype, or does not come.
  void wait(Receive& receive, std::chrono::milliseconds limit);
  /// Whether it is done, without waiting; errors as if waited for since `start`.
  bool poll(Receive& receive, std::chrono::steady_clock::time_point start);

  /// Takes what is there until `receive` is done. Returns whether it is.
  bool try_complete(Receive& receive);
  /// Empties the mailboxes that are full: their senders may be waiting for room.
  void relieve();
  /// What was copied out of senders' memory.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Kept {
    Message message;
    at::Tensor memory;
  };
  enum class Patience { none, limited };

  bool complete(Receive& receive, const Attempt& attempt, Patience patience);
  Attempt attempt(const Receive& receive) const;
  bool is_needed(const Receive& receive, int peer, End end) const;
  bool all_left() const;

  uint64_t waiting(int source) const;
  void take(int source);
  std::shared_ptr<Receive> first_for(const Message& message);
  void deliver(Receive& receive, const Message& message);

  Channel& channel_;
  std::list<std::weak_ptr<Receive>> posted_;  // not done, in the order of their posting
  std::list<Kept> kept_;                      // fit none of `posted_`, in the order of their arrival
  uint64_t receives_ = 0;
  int next_source_ = 0;  // of receives from any
  int64_t copied_bytes_ = 0;
};

}  // namespace shardwise::comm::shm
