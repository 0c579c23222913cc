// The slow half of waiting: sleep in slices, and at the end of each find out whether the wait can still
// succeed.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

using Clock = std::chrono::steady_clock;

/// Who holds a collective up when `peer` has not come: `peer`, unless another is further behind. Then `peer`
/// may well wait for that one, as a root does until all have read.
int furthest_behind(const std::vector<Control*>& controls, int peer) {
  const auto progress = [&](int rank) {
    const Control& control = *controls[size_t(rank)];
    const uint64_t posted =
        std::max(control.slots[0].flag.sequence.load(), control.slots[1].flag.sequence.load());
    return std::pair(posted, control.closed.sequence.load());
  };
  int last = peer;
  for (int rank = 0; rank < int(controls.size()); ++rank) {
    if (progress(rank) < progress(last)) last = rank;
  }
  return last;
}

}  // namespace

Flag& Channel::flag(Phase phase, int peer) const {
  Control& control = *controls_[size_t(peer)];
  return phase == Phase::opening ? control.slots[sequence() % 2].flag : control.closed;
}

bool Channel::reached(Phase phase, int peer) const {
  return flag(phase, peer).sequence.load(std::memory_order_acquire) >= sequence();
}

void Channel::await(Phase phase, int peer) {
  if (reached(phase, peer)) return;
  const auto ready = [&] { return reached(phase, peer); };
  const auto can_do_without = [&](int other, End) { return reached(phase, other); };
  wait_for({attempt(peer), flag(phase, peer), ready, can_do_without});
}

void Channel::wait_for(const Wait& wait) {
  if (!wait_awake(policy_, wait.ready)) {
    while (true) {
      const uint64_t seen = wait.flag.sequence.load();
      if (wait.ready()) break;
      check_failures(wait);
      while_waiting_();
      if (wait.ready()) break;
      sleep_on(wait.flag, seen, std::min(kSlice, wait.attempt.limit));
    }
  }
  waited_ += Clock::now() - wait.attempt.start;
}

void Channel::check_failures(const Wait& wait) {
  throw_if_aborted(wait.attempt);
  for (int peer = 0; peer < size(); ++peer) check_alive(wait, peer);
  // Asked again: this process may have stood still since it last was.
  if (Clock::now() - wait.attempt.start >= wait.attempt.limit && !wait.ready()) fail_late(wait.attempt);
}

// The first reason that any rank gave is everybody's. Who hears it breaks its own part as well, so that its
// next call does not write over what a peer that has not heard yet still reads.
void Channel::throw_if_aborted(const Attempt& attempt) {
  for (const Control* control : controls_) {
    if (control->abort.state.load() == Abort::set) fail(attempt, control->abort.peer, control->abort.reason);
  }
}

// A rank may end before its peers are through, as long as it has done its part. Whether it left in good order
// is read before that part is looked for again, so that one just done is not overlooked.
void Channel::check_alive(const Wait& wait, int peer) {
  const bool left = controls_[size_t(peer)]->left.load() != 0;
  const bool gone = is_gone(peer);
  if ((!left && !gone) || wait.can_do_without(peer, left ? End::left : End::gone)) return;
  throw_if_aborted(wait.attempt);  // by now it may be told why
  fail(wait.attempt, peer,
       fmt::format("rank {} (pid {}) {}", peer, pids_[size_t(peer)], left ? "left" : "is gone"));
}

bool Channel::is_gone(int peer) const {
  pollfd lifetime{lifetimes_[size_t(peer)].get(), POLLIN, 0};  // a negative file is never ready
  return poll(&lifetime, 1, 0) == 1;
}

bool Channel::is_broken() const {
  return controls_[size_t(rank_)]->abort.state.load(std::memory_order_relaxed) != Abort::none;
}

void Channel::fail_late(const Attempt& attempt) {
  if (attempt.peer < 0) fail(attempt, attempt.peer, "no rank came");
  const bool in_collective = attempt.op == name(mine_.op) && attempt.sequence == sequence();
  const int peer = in_collective ? furthest_behind(controls_, attempt.peer) : attempt.peer;
  fail(attempt, peer, fmt::format("rank {} (pid {}) did not come", peer, pids_[size_t(peer)]));
}

void Channel::fail_unfinished() {
  fail(attempt(rank_), rank_,
       fmt::format("rank {} (pid {}) broke off in the middle", rank_, pids_[size_t(rank_)]));
}

void Channel::fail_mismatch(const Descriptor& theirs, int peer) {
  const std::string ours = fmt::format("rank {} runs {}", rank_, describe(mine_));
  const std::string others = fmt::format("rank {} runs {}", peer, describe(theirs));
  fail(attempt(peer), peer, rank_ < peer ? ours + ", " + others : others + ", " + ours);
}

void Channel::fail_transfer(const Attempt& attempt, int peer, const std::string& sent,
                            const std::string& taken) {
  fail(attempt, peer, fmt::format("rank {} sends {}, rank {} takes {}", peer, sent, rank_, taken));
}

void Channel::fail(const Attempt& attempt, int peer, const std::string& what) {
  poison(peer, what);
  throw_failure(attempt, peer, what);
}

void Channel::throw_failure(const Attempt& attempt, int peer, const std::string& what) const {
  const std::chrono::duration<double> elapsed = Clock::now() - attempt.start, limit = attempt.limit;
  throw base::CommError(
      {std::string(attempt.op), rank_, peer, attempt.sequence, elapsed.count(), limit.count()}, what);
}

void Channel::abort(const std::string& reason) {
  poison(rank_, fmt::format("rank {} aborted: {}", rank_, reason));
}

void Channel::poison(int peer, const std::string& reason) {
  if (is_fork()) return;
  if (!controls_[size_t(rank_)]->abort.set_once(peer, reason)) return;
  for (Control* control : controls_) {
    for (Slot& slot : control->slots) wake_sleepers(slot.flag);
    wake_sleepers(control->closed);
    ring(control->doorbell);
  }
}

}  // namespace shardwise::comm::shm
