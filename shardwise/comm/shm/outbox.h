// The sending side of messages: copies each message into the receiver's mailbox, or into the heap if it is
// longer, and frees the memory when the message has been received (docs/adr/0016).
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "shardwise/comm/shm/inbox.h"
#include "shardwise/comm/shm/staged_input.h"

namespace shardwise::comm::shm {

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
  std::vector<std::deque<Block>> blocks_;  // by peer, of messages not yet received; empty if sent inline
  uint64_t sends_ = 0;
  int64_t copied_bytes_ = 0;
};

}  // namespace shardwise::comm::shm
