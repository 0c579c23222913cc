#include "shardwise/comm/shm/signals.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm::shm {

void Signals::put(int to, int channel, Limit limit) {
  put(begin("put_signal", to, channel, limit), channel);
}

void Signals::wait(int from, int channel, Limit limit) {
  take(begin("wait_signal", from, channel, limit), channel);
}

// A rank that is early at the next barrier waits in `put` until its last signal is taken. The limit is that
// of all waits together.
void Signals::barrier(int channel, Limit limit) {
  Attempt attempt = begin("symmetric_barrier", group_.rank(), channel, limit);
  const auto with_peers = [&](void (Signals::*act)(const Attempt&, int)) {
    for (int step = 1; step < group_.size(); ++step) {
      attempt.peer = (group_.rank() + step) % group_.size();
      (this->*act)(attempt, channel);
    }
  };
  with_peers(&Signals::put);
  with_peers(&Signals::take);
}

Attempt Signals::begin(std::string_view op, int peer, int channel, Limit limit) {
  const int ranks = group_.size();
  TORCH_CHECK_VALUE(peer >= 0 && peer < ranks, op, ": rank must be in [0, ", ranks, "); got ", peer);
  TORCH_CHECK_VALUE(channel >= 0 && channel < pads_.channels(), op, ": channel must be in [0, ",
                    pads_.channels(), ") of a signal pad of ", pads_.bytes, " bytes; got ", channel);
  const Limit most = group_.timeout();
  const Attempt attempt{op, ++calls_, peer, limit.count() > 0 ? std::min(limit, most) : most};
  group_.check_usable(attempt);
  return attempt;
}

Signals::Word Signals::word(int owner, int sender, int channel) const {
  auto* words = static_cast<uint32_t*>(pads_.places[size_t(owner)]);
  return Word(words[int64_t(channel) * pads_.home_size + pads_.home_ranks[size_t(sender)]]);
}

void Signals::put(const Attempt& attempt, int channel) {
  turn(attempt, word(/*owner=*/attempt.peer, /*sender=*/group_.rank(), channel), /*before=*/0, /*after=*/1);
}

void Signals::take(const Attempt& attempt, int channel) {
  turn(attempt, word(/*owner=*/group_.rank(), /*sender=*/attempt.peer, channel), /*before=*/1, /*after=*/0);
}

// Either way the peer may be waiting for it: for the signal, or for room to put the next.
void Signals::turn(const Attempt& attempt, Word word, uint32_t before, uint32_t after) {
  bool turned = false;
  const auto ready = [&] {
    uint32_t seen = before;
    turned = turned || word.compare_exchange_strong(seen, after);
    return turned;
  };
  const auto can_do_without = [&](int peer, End) { return peer != attempt.peer || ready(); };
  if (!ready()) group_.wait_for({attempt, group_.control(group_.rank()).doorbell, ready, can_do_without});
  ring(group_.control(attempt.peer).doorbell);
}

}  // namespace shardwise::comm::shm
