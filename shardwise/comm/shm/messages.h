// Messages between two ranks (docs/adr/0016).
//
// The outbox copies each message into the receiver's mailbox, or into the heap if it is longer, and frees the
// memory when the message has been received. The inbox drains the peers' mailboxes in order and matches each
// message with a posted receive. A message goes to the first posted receive that matches it, so that receives
// of one source and tag complete in posting order, whichever is waited for. A message without a match is
// copied to the unexpected-message queue in private memory. All calls come from the thread of the
// collectives; only the last reference to a Receive may be dropped on any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <vector>

#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {

/// A message, in its sender's memory or in the unexpected-message queue.
struct Message {
  int source;
  int64_t tag;
  int64_t numel;
  int8_t dtype;
  const std::byte* data;
  int64_t bytes() const;
};

/// A posted receive. If it is dropped before it is done, its target is not written and its message goes to
/// the next matching receive.
struct Receive {
  at::Tensor target;
  int source;  // or kAnySource
  int64_t tag;
  uint64_t number;                     // sequence number among this rank's receives
  int sender = -1;                     // the sender of its message; -1 until it has been received
  std::exception_ptr error = nullptr;  // why its message could not be copied into the target

  bool done() const { return sender >= 0 || error; }
  bool matches(const Message& message) const {
    return tag == message.tag && (source == kAnySource || source == message.source);
  }
};

class Inbox {
 public:
  /// Sets the wait callback of `channel`, which must not wait after this object is destroyed.
  explicit Inbox(Channel& channel) : channel_(channel) {
    channel.set_wait_callback([this] { drain(); });
  }
  Inbox(const Inbox&) = delete;

  /// Posts a receive into `target`, a CPU tensor of any strides. It is done at once if its message is in the
  /// unexpected-message queue. Errors: c10::ValueError after the group's shutdown, base::CommError as `wait`.
  std::shared_ptr<Receive> post(const at::Tensor& target, int source, int64_t tag);
  /// Waits until `receive` is done. Errors: base::CommError if the message has another size or dtype, or
  /// times out; `receive.error`.
  void wait(Receive& receive, std::chrono::milliseconds limit);
  /// Returns whether `receive` is done, without waiting. Errors: those of a wait since `start`.
  bool poll(Receive& receive, std::chrono::steady_clock::time_point start);

  /// Processes the messages present until `receive` is done. Returns whether it is done.
  bool try_complete(Receive& receive);
  /// Empties all full mailboxes, because their senders may be waiting for room.
  void drain();
  /// Returns the bytes copied out of senders' memory.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct UnexpectedMessage {
    Message message;
    at::Tensor memory;
  };
  enum class WaitMode { poll, blocking };

  bool complete(Receive& receive, const WaitContext& context, WaitMode mode);
  WaitContext wait_context(const Receive& receive) const;
  bool is_needed(const Receive& receive, int peer, PeerState state) const;
  bool all_left() const;

  uint64_t pending(int source) const;
  void process_next(int source);
  std::shared_ptr<Receive> match(const Message& message);
  void deliver(Receive& receive, const Message& message);

  Channel& channel_;
  std::list<std::weak_ptr<Receive>> posted_;  // not done, in posting order
  std::list<UnexpectedMessage> unexpected_;   // without a match in `posted_`, in order of arrival
  uint64_t receives_ = 0;
  int next_source_ = 0;  // where the next receive from any source starts
  int64_t copied_bytes_ = 0;
};

class Outbox {
 public:
  /// Drains `inbox` while a send waits, so that two ranks may fill each other's mailbox.
  Outbox(Channel& channel, Inbox& inbox)
      : channel_(channel), inbox_(inbox), blocks_(size_t(channel.size())) {}

  /// Sends `x` to rank `to`. Returns when `x` may be overwritten, possibly before `to` receives it.
  /// Errors: c10::ValueError after the group's shutdown; base::CommError if the mailbox stays full for the
  /// group's timeout, or if `to` has left or exited.
  void send(const at::Tensor& x, int to, int64_t tag);
  /// Frees the blocks of messages that have been received.
  void free_received();
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  uint64_t unreceived(int peer) const;
  void wait_for_room(const WaitContext& context);

  Channel& channel_;
  Inbox& inbox_;
  std::vector<std::deque<HeapBlock>> blocks_;  // by peer, of messages not yet received; empty if sent inline
  uint64_t sends_ = 0;
  int64_t copied_bytes_ = 0;
};

}  // namespace shardwise::comm::shm
