#include "shardwise/comm/shm/inbox.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/shm/pack.h"

namespace shardwise::comm::shm {

int64_t Message::bytes() const {
  return numel * int64_t(c10::elementSize(static_cast<c10::ScalarType>(dtype)));
}

std::shared_ptr<Receive> Inbox::post(const at::Tensor& target, int source, int64_t tag) {
  auto receive = std::make_shared<Receive>(Receive{target, source, tag, ++receives_});
  channel_.check_usable(attempt(*receive));
  const auto kept =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) { return receive->fits(k.message); });
  if (kept == kept_.end()) {
    posted_.push_back(receive);
  } else {
    deliver(*receive, kept->message);
    kept_.erase(kept);
  }
  return receive;
}

void Inbox::wait(Receive& receive, std::chrono::milliseconds limit) {
  Attempt limited = attempt(receive);
  limited.limit = limit;
  complete(receive, limited, Patience::limited);
}

bool Inbox::poll(Receive& receive, std::chrono::steady_clock::time_point start) {
  Attempt since = attempt(receive);
  since.start = start;
  return complete(receive, since, Patience::none);
}

bool Inbox::complete(Receive& receive, const Attempt& attempt, Patience patience) {
  if (receive.done()) return true;
  channel_.check_usable(attempt);
  if (try_complete(receive)) return true;
  const auto ready = [&] { return try_complete(receive); };
  const auto can_do_without = [&](int peer, End end) {
    return !is_needed(receive, peer, end) || try_complete(receive);
  };
  const Wait wait{attempt, channel_.control(channel_.rank()).doorbell, ready, can_do_without};
  if (patience == Patience::limited) {
    channel_.wait_for(wait);
  } else {
    channel_.check_failures(wait);
  }
  return receive.done();
}

Attempt Inbox::attempt(const Receive& receive) const {
  return {"recv", receive.number, receive.source, channel_.timeout()};
}

// Of many sources each that has left may have had nothing to send, but one that is gone may have had.
bool Inbox::is_needed(const Receive& receive, int peer, End end) const {
  if (receive.source != kAnySource) return peer == receive.source;
  return end == End::gone || all_left();
}

bool Inbox::all_left() const {
  for (int peer = 0; peer < channel_.size(); ++peer) {
    if (peer != channel_.rank() && channel_.control(peer).left.load() == 0) return false;
  }
  return true;
}

bool Inbox::try_complete(Receive& receive) {
  relieve();
  const bool any = receive.source == kAnySource;
  const int first = any ? next_source_ : receive.source;
  for (int step = 0; step < (any ? channel_.size() : 1); ++step) {
    const int source = (first + step) % channel_.size();
    while (!receive.done() && waiting(source) > 0) take(source);
  }
  if (any && receive.done()) next_source_ = (receive.sender + 1) % channel_.size();
  return receive.done();
}

void Inbox::relieve() {
  for (int source = 0; source < channel_.size(); ++source) {
    if (waiting(source) < kEnvelopes) continue;
    while (waiting(source) > 0) take(source);
  }
}

uint64_t Inbox::waiting(int source) const {
  const int rank = channel_.rank();
  return channel_.control(source).mailboxes[rank].posted.load(std::memory_order_acquire) -
         channel_.control(rank).mailboxes[source].taken.load(std::memory_order_relaxed);
}

void Inbox::take(int source) {
  const int rank = channel_.rank();
  std::atomic<uint64_t>& taken = channel_.control(rank).mailboxes[source].taken;
  const uint64_t number = taken.load(std::memory_order_relaxed);
  const Envelope& envelope = channel_.control(source).mailboxes[rank].envelopes[number % kEnvelopes];
  Message message{source, envelope.tag, envelope.numel, envelope.dtype,
                  channel_.base(source) + envelope.offset};
  if (const std::shared_ptr<Receive> receive = first_for(message)) {
    deliver(*receive, message);
  } else {
    at::Tensor memory = at::empty({message.bytes()}, at::kByte);
    unpack(memory, message.data);
    message.data = static_cast<const std::byte*>(memory.const_data_ptr());
    kept_.insert(base::mutated(base::Mutation::kept_in_reverse) ? kept_.begin() : kept_.end(),
                 {message, memory});
  }
  copied_bytes_ += message.bytes();
  taken.store(number + 1);
  ring(channel_.control(source).doorbell);
}

/// Takes it out of the list, with those before it that were given up.
std::shared_ptr<Receive> Inbox::first_for(const Message& message) {
  for (auto place = posted_.begin(); place != posted_.end();) {
    std::shared_ptr<Receive> receive = place->lock();
    if (receive && !receive->fits(message)) {
      ++place;
      continue;
    }
    place = posted_.erase(place);
    if (receive) return receive;
  }
  return nullptr;
}

void Inbox::deliver(Receive& receive, const Message& message) {
  const auto dtype = static_cast<int8_t>(receive.target.scalar_type());
  if (message.dtype != dtype || message.numel != receive.target.numel()) {
    channel_.fail_transfer(attempt(receive), message.source, describe(message.dtype, message.numel),
                           describe(dtype, receive.target.numel()));
  }
  unpack(receive.target, message.data);
  receive.sender = base::mutated(base::Mutation::name_receiver_as_sender) ? channel_.rank() : message.source;
}

}  // namespace shardwise::comm::shm
