// How a channel waits: it spins, yields, then sleeps in slices, and after each slice checks whether the wait
// can still succeed.
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "shardwise/comm/shm/channel.h"

namespace shardwise::comm::shm {
namespace {

constexpr std::chrono::milliseconds kSleepSlice{50};

using Clock = std::chrono::steady_clock;

/// Spins, then yields. Returns whether `ready` became true within the policy's time.
template <typename Ready>
bool spin_then_yield(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kPausesPerClockRead = 32;
  const auto start = Clock::now();
  auto elapsed = std::chrono::nanoseconds(0);
  while (elapsed < policy.spin) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    elapsed = Clock::now() - start;
  }
  while (elapsed < policy.spin + policy.yield) {
    if (ready()) return true;
    sched_yield();
    elapsed = Clock::now() - start;
  }
  return ready();
}

// The futex word is the low half of the sequence. The flag is in a shared mapping, so the futex must not be
// PRIVATE.
uint32_t* futex_word(Flag& flag) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(flag.sequence) == sizeof(uint64_t));
  return reinterpret_cast<uint32_t*>(&flag.sequence);
}

/// Sleeps until `flag` differs from `seen`, a peer wakes the sleepers, or `limit` passes.
///
/// The sleeper counts itself, loads the sequence and sleeps. The waker stores the sequence and loads the
/// count. All four are sequentially consistent, so at least one sees the other; the kernel compares the word
/// again before it suspends the sleeper.
void sleep_on(Flag& flag, uint64_t seen, std::chrono::milliseconds limit) {
  flag.sleepers.fetch_add(1);
  if (flag.sequence.load() == seen) {
    const timespec time{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
    syscall(SYS_futex, futex_word(flag), FUTEX_WAIT, static_cast<uint32_t>(seen), &time, nullptr, 0);
  }
  flag.sleepers.fetch_sub(1);
}

/// Returns the rank that delays a collective when `peer` is late: `peer`, unless another rank is further
/// behind. Then `peer` may be waiting for that rank, as a root does until all have read.
int furthest_behind(const std::vector<Control*>& controls, int peer) {
  const auto progress = [&](int rank) {
    const Control& control = *controls[size_t(rank)];
    const uint64_t posted =
        std::max(control.slots[0].flag.sequence.load(), control.slots[1].flag.sequence.load());
    return std::pair(posted, control.departed.sequence.load());
  };
  int slowest = peer;
  for (int rank = 0; rank < int(controls.size()); ++rank) {
    if (progress(rank) < progress(slowest)) slowest = rank;
  }
  return slowest;
}

}  // namespace

WaitPolicy WaitPolicy::choose(int ranks, int cores) {
  using std::chrono::microseconds;
  if (ranks <= cores) return {microseconds(50), microseconds(2000)};
  return {microseconds(1), microseconds(500)};
}

void advance(Flag& flag, uint64_t sequence) {
  flag.sequence.store(sequence);
  if (flag.sleepers.load() != 0) wake_sleepers(flag);
}

void ring(Flag& flag) {
  flag.sequence.fetch_add(1);
  if (flag.sleepers.load() != 0) wake_sleepers(flag);
}

void wake_sleepers(Flag& flag) {
  syscall(SYS_futex, futex_word(flag), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Flag& Channel::flag(Phase phase, int peer) const {
  Control& control = *controls_[size_t(peer)];
  return phase == Phase::arrival ? control.slots[sequence() % 2].flag : control.departed;
}

bool Channel::reached(Phase phase, int peer) const {
  return flag(phase, peer).sequence.load(std::memory_order_acquire) >= sequence();
}

void Channel::wait_for_phase(Phase phase, int peer) {
  if (reached(phase, peer)) return;
  const auto ready = [&] { return reached(phase, peer); };
  const auto tolerates_loss_of = [&](int other, PeerState) { return reached(phase, other); };
  wait_for({wait_context(peer), flag(phase, peer), ready, tolerates_loss_of});
}

void Channel::wait_for(const Wait& wait) {
  if (!spin_then_yield(policy_, wait.ready)) {
    while (true) {
      const uint64_t seen = wait.flag.sequence.load();
      if (wait.ready()) break;
      check_failures(wait);
      wait_callback_();
      if (wait.ready()) break;
      sleep_on(wait.flag, seen, std::min(kSleepSlice, wait.context.limit));
    }
  }
  waited_ += Clock::now() - wait.context.start;
}

void Channel::check_failures(const Wait& wait) {
  throw_if_aborted(wait.context);
  check_job(wait.context);  // before the peers, so that all of the job name the rank that was first
  for (int peer = 0; peer < size(); ++peer) check_alive(wait, peer);
  // `ready` is called again, because this process may have been stopped since the last call.
  if (Clock::now() - wait.context.start >= wait.context.limit && !wait.ready()) fail_timeout(wait.context);
}

// The first reason of any rank applies to all ranks. A rank that sees it sets its own abort word too, so that
// its next call does not overwrite memory that a peer, unaware of the abort, still reads.
void Channel::throw_if_aborted(const WaitContext& context) {
  if (part_.job) {
    if (const auto failure = part_.job->reported_failure()) fail_with_job(context, *failure);
  }
  local().abort.wait_until_set();
  if (const auto failure = reported_failure()) fail(context, failure->peer, failure->reason);
}

std::optional<Channel::Failure> Channel::reported_failure() const {
  for (const Control* control : controls_) {
    if (control->abort.state.load() == Abort::State::set)
      return Failure{control->abort.peer, control->abort.reason};
  }
  return std::nullopt;
}

// `left` is read after the exit, because a rank leaves before it exits. So is a reason: a rank that exits
// because of another's failure has reported that one.
std::optional<Channel::Failure> Channel::find_failure() {
  if (auto failure = reported_failure()) return failure;
  for (int peer = 0; peer < size(); ++peer) {
    if (!has_exited(peer) || controls_[size_t(peer)]->left.load() != 0) continue;
    if (auto failure = reported_failure()) return failure;
    set_abort_reason(peer, exit_text(peer, pids_[size_t(peer)], /*left=*/false));
    return reported_failure();
  }
  return std::nullopt;
}

void Channel::check_job(const WaitContext& context) {
  if (!part_.job) return;
  if (const auto failure = part_.job->find_failure()) fail_with_job(context, *failure);
}

void Channel::fail_with_job(const WaitContext& context, const Failure& failure) {
  const auto local = std::ranges::find(part_.ranks, failure.peer);
  const bool is_member = local != part_.ranks.end();
  fail(context, is_member ? static_cast<int>(local - part_.ranks.begin()) : -1, failure.reason);
}

// A rank may leave or exit before its peers finish, if it has completed its part. `left` is read before
// tolerates_loss_of checks that part again, so that a part completed just now is not missed.
void Channel::check_alive(const Wait& wait, int peer) {
  const bool left = controls_[size_t(peer)]->left.load() != 0;
  const bool exited = has_exited(peer);
  if ((!left && !exited) || wait.tolerates_loss_of(peer, left ? PeerState::left : PeerState::exited)) return;
  throw_if_aborted(wait.context);  // by now there may be a reason
  fail(wait.context, peer, exit_text(peer, pids_[size_t(peer)], left));
}

bool Channel::has_exited(int peer) const {
  pollfd pidfd{pidfds_[size_t(peer)].get(), POLLIN, 0};  // a negative descriptor is never ready
  return poll(&pidfd, 1, 0) == 1;
}

bool Channel::is_broken() const {
  return local().abort.state.load(std::memory_order_relaxed) != Abort::State::none ||
         (part_.job && part_.job->is_broken());
}

void Channel::fail_timeout(const WaitContext& context) {
  if (context.peer < 0) fail(context, context.peer, "timed out waiting for any rank [SW0322]");
  const bool in_collective = context.op == name(descriptor_.op) && context.sequence == sequence();
  const int peer = in_collective ? furthest_behind(controls_, context.peer) : context.peer;
  fail(context, peer,
       fmt::format("timed out waiting for rank {} (pid {}) [SW0311]", job_rank(peer), pids_[size_t(peer)]));
}

void Channel::fail_unfinished() {
  fail(wait_context(rank()), rank(),
       fmt::format("rank {} (pid {}) left a collective unfinished after an earlier error [SW0312]",
                   job_rank(rank()), pids_[size_t(rank())]));
}

void Channel::fail_mismatch(const Descriptor& theirs, int peer) {
  fail(wait_context(peer), peer, mismatch_text(descriptor_, peer, theirs));
}

void Channel::fail_transfer(const WaitContext& context, int peer, const std::string& sent,
                            const std::string& expected) {
  fail(context, peer, transfer_text(peer, sent, expected));
}

void Channel::fail(const WaitContext& context, int peer, const std::string& what) {
  if (part_.job) part_.job->set_abort_reason(job_rank(peer), what);
  set_abort_reason(peer, what);
  throw_failure({context.op, context.sequence, peer, Clock::now() - context.start, context.limit}, what);
}

void Channel::abort(const std::string& reason) {
  if (part_.job) part_.job->abort(reason);
  set_abort_reason(rank(), abort_text(reason));
}

void Channel::set_abort_reason(int peer, const std::string& reason) {
  if (is_fork()) return;
  if (!local().abort.set_once(peer, reason)) return;
  for (Control* control : controls_) {
    for (Slot& slot : control->slots) wake_sleepers(slot.flag);
    wake_sleepers(control->departed);
    ring(control->doorbell);
  }
}

}  // namespace shardwise::comm::shm
