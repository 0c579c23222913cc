// The slow half of waiting: sleep in slices, and at the end of each find out whether the wait can still
// succeed.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>

#include <cstring>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/channel.h"
#include "shardwise/comm/shm/describe.h"

namespace shardwise::comm::shm {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

using Clock = std::chrono::steady_clock;

}  // namespace

struct Channel::Wait {
  Phase phase;
  int peer;
  Clock::time_point start = Clock::now();
};

Flag& Channel::flag(Phase phase, int peer) const {
  Control& control = *controls_[size_t(peer)];
  return phase == Phase::opening ? control.slots[sequence() % 2].flag : control.closed;
}

bool Channel::reached(Phase phase, int peer) const {
  return flag(phase, peer).sequence.load(std::memory_order_acquire) >= sequence();
}

void Channel::await(Phase phase, int peer) {
  if (reached(phase, peer)) return;
  const Wait wait{phase, peer};
  wait_for(wait);
  waited_ += Clock::now() - wait.start;
}

void Channel::wait_for(const Wait& wait) {
  if (wait_awake(policy_, [&] { return reached(wait.phase, wait.peer); })) return;
  Flag& awaited = flag(wait.phase, wait.peer);
  while (true) {
    const uint64_t seen = awaited.sequence.load();
    if (seen >= sequence()) return;
    check_failures(wait);
    sleep_on(awaited, seen, std::min(kSlice, timeout_));
  }
}

void Channel::check_failures(const Wait& wait) {
  throw_if_aborted(wait);
  for (int peer = 0; peer < size(); ++peer) check_alive(wait, peer);
  if (Clock::now() - wait.start >= timeout_) {
    fail(wait, wait.peer, fmt::format("rank {} (pid {}) did not come", wait.peer, pids_[size_t(wait.peer)]));
  }
}

// The first reason that any rank gave is everybody's.
void Channel::throw_if_aborted(const Wait& wait) const {
  for (const Control* control : controls_) {
    if (control->abort.state.load() == Abort::set)
      throw_failure(wait, control->abort.peer, control->abort.reason);
  }
}

// A rank may end before its peers are through, as long as it has done its part of the collective. Whether it
// left in good order is written before its last flag is read again, so that a part just done is not
// overlooked.
void Channel::check_alive(const Wait& wait, int peer) {
  const bool left = controls_[size_t(peer)]->left.load() != 0;
  const bool gone = is_gone(peer);
  if ((!left && !gone) || reached(wait.phase, peer)) return;
  fail(wait, peer, fmt::format("rank {} (pid {}) {}", peer, pids_[size_t(peer)], left ? "left" : "is gone"));
}

bool Channel::is_gone(int peer) const {
  pollfd lifetime{lifetimes_[size_t(peer)].get(), POLLIN, 0};  // a negative file is never ready
  return poll(&lifetime, 1, 0) == 1;
}

void Channel::throw_if_broken() const {
  const Abort& own = controls_[size_t(rank_)]->abort;
  if (own.state.load(std::memory_order_relaxed) != Abort::none) throw_if_aborted({Phase::opening, -1});
}

void Channel::fail_mismatch(const Descriptor& theirs, int peer) {
  const std::string ours = fmt::format("rank {} runs {}", rank_, describe(mine_));
  const std::string others = fmt::format("rank {} runs {}", peer, describe(theirs));
  fail({Phase::opening, peer}, peer, rank_ < peer ? ours + ", " + others : others + ", " + ours);
}

void Channel::fail(const Wait& wait, int peer, const std::string& what) {
  poison(peer, what);
  throw_failure(wait, peer, what);
}

void Channel::throw_failure(const Wait& wait, int peer, const std::string& what) const {
  const std::chrono::duration<double> elapsed = Clock::now() - wait.start, limit = timeout_;
  throw base::CommError(
      {std::string(name(mine_.op)), rank_, peer, sequence(), elapsed.count(), limit.count()}, what);
}

void Channel::abort(const std::string& reason) {
  poison(rank_, fmt::format("rank {} aborted: {}", rank_, reason));
}

void Channel::poison(int peer, const std::string& reason) {
  Abort& own = controls_[size_t(rank_)]->abort;
  uint32_t state = Abort::none;
  if (!own.state.compare_exchange_strong(state, Abort::writing)) return;
  own.peer = peer;
  std::strncpy(own.reason, reason.c_str(), sizeof(own.reason) - 1);
  own.state.store(Abort::set);
  for (Control* control : controls_) {
    for (Slot& slot : control->slots) wake_sleepers(slot.flag);
    wake_sleepers(control->closed);
  }
}

}  // namespace shardwise::comm::shm
