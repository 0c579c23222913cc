// Messages to other ranks: copied into the mailbox for their receiver, or into the heap where they are
// longer, and given back when they were taken (docs/adr/0016).
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "shardwise/comm/shm/inbox.h"
#include "shardwise/comm/shm/staged.h"

namespace shardwise::comm::shm {

class Outbox {
 public:
  /// `inbox` is relieved while a send waits, so that two ranks may fill each other's mailbox.
  Outbox(Channel& channel, Inbox& inbox)
      : channel_(channel), inbox_(inbox), blocks_(size_t(channel.size())) {}

  /// Returns when `x` may be written to again, which is before `to` receives it.
  /// Errors: c10::ValueError after the end of the group, base::CommError when `to` takes nothing for the
  /// group's timeout, or never will.
  void send(const at::Tensor& x, int to, int64_t tag);
  /// Frees the blocks of messages that were taken.
  void collect();
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  uint64_t untaken(int peer) const;
  void await_room(const Attempt& attempt);

  Channel& channel_;
  Inbox& inbox_;
  std::vector<std::deque<Block>> blocks_;  // by peer, of messages not seen taken; empty where sent inline
  uint64_t sends_ = 0;
  int64_t copied_bytes_ = 0;
};

}  // namespace shardwise::comm::shm
