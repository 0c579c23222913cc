#include "shardwise/comm/shm/signals.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm::shm {

void Signals::put(int to, int channel, Limit limit) {
  put(start_call("put_signal", to, channel, limit), channel);
}

void Signals::wait(int from, int channel, Limit limit) {
  consume(start_call("wait_signal", from, channel, limit), channel);
}

// A rank that reaches the next barrier early waits in `put` until its last signal is consumed. The limit
// applies to all waits together.
void Signals::barrier(int channel, Limit limit) {
  WaitContext context = start_call("symmetric_barrier", group_.rank(), channel, limit);
  const auto with_peers = [&](void (Signals::*act)(const WaitContext&, int)) {
    for (int step = 1; step < group_.size(); ++step) {
      context.peer = (group_.rank() + step) % group_.size();
      (this->*act)(context, channel);
    }
  };
  with_peers(&Signals::put);
  with_peers(&Signals::consume);
}

WaitContext Signals::start_call(std::string_view op, int peer, int channel, Limit limit) {
  const int ranks = group_.size();
  TORCH_CHECK_VALUE(peer >= 0 && peer < ranks, op, ": rank must be in [0, ", ranks, "); got ", peer);
  TORCH_CHECK_VALUE(channel >= 0 && channel < pads_.channels(), op, ": channel must be in [0, ",
                    pads_.channels(), ") of a signal pad of ", pads_.bytes, " bytes; got ", channel);
  const Limit max_limit = group_.timeout();
  const WaitContext context{op, ++calls_, peer, limit.count() > 0 ? std::min(limit, max_limit) : max_limit};
  group_.check_usable(context);
  return context;
}

Signals::Word Signals::word(int owner, int sender, int channel) const {
  auto* words = static_cast<uint32_t*>(pads_.addresses[size_t(owner)]);
  return Word(words[int64_t(channel) * pads_.home_size + pads_.home_ranks[size_t(sender)]]);
}

void Signals::put(const WaitContext& context, int channel) {
  exchange(context, word(/*owner=*/context.peer, /*sender=*/group_.rank(), channel), /*before=*/0,
           /*after=*/1);
}

void Signals::consume(const WaitContext& context, int channel) {
  exchange(context, word(/*owner=*/group_.rank(), /*sender=*/context.peer, channel), /*before=*/1,
           /*after=*/0);
}

// Rings the peer in both directions: it may wait for the signal, or for the word to put its next signal.
void Signals::exchange(const WaitContext& context, Word word, uint32_t before, uint32_t after) {
  bool exchanged = false;
  const auto ready = [&] {
    uint32_t seen = before;
    exchanged = exchanged || word.compare_exchange_strong(seen, after);
    return exchanged;
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) { return peer != context.peer || ready(); };
  if (!ready()) group_.wait_for({context, group_.control(group_.rank()).doorbell, ready, tolerates_loss_of});
  ring(group_.control(context.peer).doorbell);
}

}  // namespace shardwise::comm::shm
