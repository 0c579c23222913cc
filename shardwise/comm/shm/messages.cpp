#include "shardwise/comm/shm/messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "shardwise/comm/shm/pack.h"

namespace shardwise::comm::shm {

int64_t Message::bytes() const {
  return numel * int64_t(c10::elementSize(static_cast<c10::ScalarType>(dtype)));
}

std::shared_ptr<Receive> Inbox::post(const at::Tensor& target, int source, int64_t tag) {
  auto receive = std::make_shared<Receive>(Receive{target, source, tag, ++receives_});
  channel_.check_usable(wait_context(*receive));
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                  [&](const UnexpectedMessage& u) { return receive->matches(u.message); });
  if (found == unexpected_.end()) {
    posted_.push_back(receive);
  } else {
    deliver(*receive, found->message);
    unexpected_.erase(found);
  }
  return receive;
}

void Inbox::wait(Receive& receive, std::chrono::milliseconds limit) {
  WaitContext limited = wait_context(receive);
  limited.limit = base::capped(limit);
  complete(receive, limited, WaitMode::blocking);
}

bool Inbox::poll(Receive& receive, std::chrono::steady_clock::time_point start) {
  WaitContext since = wait_context(receive);
  since.start = start;
  return complete(receive, since, WaitMode::poll);
}

bool Inbox::complete(Receive& receive, const WaitContext& context, WaitMode mode) {
  if (receive.error) std::rethrow_exception(receive.error);
  if (receive.done()) return true;
  channel_.check_usable(context);
  const auto ready = [&] { return try_complete(receive); };
  const auto tolerates_loss_of = [&](int peer, PeerState state) {
    return !is_needed(receive, peer, state) || try_complete(receive);
  };
  const Wait wait{context, channel_.control(channel_.rank()).doorbell, ready, tolerates_loss_of};
  if (!try_complete(receive)) {
    if (mode == WaitMode::blocking) {
      channel_.wait_for(wait);
    } else {
      channel_.check_failures(wait);
    }
  }
  if (receive.error) std::rethrow_exception(receive.error);
  return receive.done();
}

WaitContext Inbox::wait_context(const Receive& receive) const {
  return {"recv", receive.number, receive.source, channel_.timeout()};
}

// For a receive from any source: a peer that left cleanly had nothing to send, but one that exited may have.
bool Inbox::is_needed(const Receive& receive, int peer, PeerState state) const {
  if (receive.source != kAnySource) return peer == receive.source;
  return state == PeerState::exited || all_left();
}

bool Inbox::all_left() const {
  for (int peer = 0; peer < channel_.size(); ++peer) {
    if (peer != channel_.rank() && channel_.control(peer).left.load() == 0) return false;
  }
  return true;
}

bool Inbox::try_complete(Receive& receive) {
  drain();
  const bool any = receive.source == kAnySource;
  const int first = any ? next_source_ : receive.source;
  for (int step = 0; step < (any ? channel_.size() : 1); ++step) {
    const int source = (first + step) % channel_.size();
    while (!receive.done() && pending(source) > 0) process_next(source);
  }
  if (any && receive.done()) next_source_ = (receive.sender + 1) % channel_.size();
  return receive.done();
}

void Inbox::drain() {
  for (int source = 0; source < channel_.size(); ++source) {
    if (pending(source) < kEnvelopes) continue;
    while (pending(source) > 0) process_next(source);
  }
}

uint64_t Inbox::pending(int source) const {
  const int rank = channel_.rank();
  return channel_.control(source).mailboxes[rank].posted.load(std::memory_order_acquire) -
         channel_.control(rank).mailboxes[source].received.load(std::memory_order_relaxed);
}

void Inbox::process_next(int source) {
  const int rank = channel_.rank();
  std::atomic<uint64_t>& received = channel_.control(rank).mailboxes[source].received;
  const uint64_t number = received.load(std::memory_order_relaxed);
  const Envelope& envelope = channel_.control(source).mailboxes[rank].envelopes[number % kEnvelopes];
  Message message{source, envelope.tag, envelope.numel, envelope.dtype,
                  channel_.base(source) + envelope.offset};
  if (const std::shared_ptr<Receive> receive = match(message)) {
    deliver(*receive, message);
  } else {
    at::Tensor memory = at::empty({message.bytes()}, at::kByte);
    unpack(memory, message.data);
    message.data = static_cast<const std::byte*>(memory.const_data_ptr());
    unexpected_.push_back({message, memory});
  }
  copied_bytes_ += message.bytes();
  received.store(number + 1);
  ring(channel_.control(source).doorbell);
}

/// Removes the first matching receive from the list, and the dropped receives before it.
std::shared_ptr<Receive> Inbox::match(const Message& message) {
  for (auto next = posted_.begin(); next != posted_.end();) {
    std::shared_ptr<Receive> receive = next->lock();
    if (receive && !receive->matches(message)) {
      ++next;
      continue;
    }
    next = posted_.erase(next);
    if (receive) return receive;
  }
  return nullptr;
}

void Inbox::deliver(Receive& receive, const Message& message) {
  const auto dtype = static_cast<int8_t>(receive.target.scalar_type());
  if (message.dtype != dtype || message.numel != receive.target.numel()) {
    channel_.fail_transfer(wait_context(receive), message.source, describe(message.dtype, message.numel),
                           describe(dtype, receive.target.numel()));
  }
  try {
    unpack(receive.target, message.data);
    receive.sender = message.source;
  } catch (...) {  // for the wait for this receive: another receive's may be running
    receive.error = std::current_exception();
  }
}

void Outbox::send(const at::Tensor& x, int to, int64_t tag) {
  const WaitContext context{"send", ++sends_, to, channel_.timeout()};
  channel_.check_usable(context);
  wait_for_room(context);
  free_received();
  Mailbox& mailbox = channel_.control(channel_.rank()).mailboxes[to];
  const uint64_t number = mailbox.posted.load(std::memory_order_relaxed);
  Envelope& envelope = mailbox.envelopes[number % kEnvelopes];
  HeapBlock block =
      x.nbytes() <= kInlineMessage ? HeapBlock() : HeapBlock(channel_.heap(), int64_t(x.nbytes()));
  std::byte* data = block.data() != nullptr ? block.data() : envelope.payload;
  pack(data, x);
  copied_bytes_ += int64_t(x.nbytes());
  envelope.tag = tag;
  envelope.numel = x.numel();
  envelope.offset = uint64_t(data - channel_.base(channel_.rank()));
  envelope.dtype = static_cast<int8_t>(x.scalar_type());
  blocks_[size_t(to)].push_back(std::move(block));
  mailbox.posted.store(number + 1);
  ring(channel_.control(to).doorbell);
}

uint64_t Outbox::unreceived(int peer) const {
  const int rank = channel_.rank();
  return channel_.control(rank).mailboxes[peer].posted.load(std::memory_order_relaxed) -
         channel_.control(peer).mailboxes[rank].received.load(std::memory_order_acquire);
}

void Outbox::wait_for_room(const WaitContext& context) {
  const int to = context.peer;
  const auto has_room = [&] { return unreceived(to) < kEnvelopes; };
  if (has_room()) return;
  const auto ready = [&] {
    inbox_.drain();
    return has_room();
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) { return peer != to || has_room(); };
  channel_.wait_for({context, channel_.control(channel_.rank()).doorbell, ready, tolerates_loss_of});
}

void Outbox::free_received() {
  for (size_t peer = 0; peer < blocks_.size(); ++peer) {
    std::deque<HeapBlock>& blocks = blocks_[peer];
    while (!blocks.empty() && blocks.size() > unreceived(int(peer))) {
      blocks.front().free_at_once();
      blocks.pop_front();
    }
  }
}

}  // namespace shardwise::comm::shm
