#include "shardwise/comm/group_guard.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "shardwise/base/error.h"

namespace shardwise::comm {

thread_local const GroupGuard::Call* GroupGuard::Call::innermost_ = nullptr;

GroupGuard::Call::Call(GroupGuard* group, const char* op)
    : group_(is_within_call_of(group) ? nullptr : group) {
  if (group_ == nullptr) return;
  TORCH_CHECK_VALUE(!group_->is_fork(), op, ": only the process that connected the group is its rank ",
                    group_->rank_, "; got a call in process ", getpid(),
                    ", a fork of it; call collectives in the parent, or start workers by spawn [SW0575]");
  const char* running = nullptr;
  TORCH_CHECK_VALUE(group_->in_flight_.compare_exchange_strong(running, op, std::memory_order_acq_rel), op,
                    ": a group runs one call at a time; got it while ", running,
                    " of this rank is in flight on another thread; use a group per thread [SW0576]");
  enclosing_ = std::exchange(innermost_, this);
}

GroupGuard::Call::~Call() {
  if (group_ == nullptr) return;
  innermost_ = enclosing_;
  group_->in_flight_.store(nullptr, std::memory_order_release);
}

bool GroupGuard::Call::is_within_call_of(const GroupGuard* group) {
  const Call* call = innermost_;
  while (call != nullptr && call->group_ != group) call = call->enclosing_;
  return call != nullptr;
}

void GroupGuard::check_member(std::string_view op) const {
  TORCH_CHECK_VALUE(!has_left_, op, ": the group must not be used after shutdown; got a call [SW0504]");
}

void GroupGuard::throw_failure(const FailedWait& wait, const std::string& what) const {
  throw base::CommError({std::string(wait.op), job_rank(rank_), job_rank(wait.peer), wait.sequence,
                         wait.elapsed.count(), wait.limit.count()},
                        what);
}

std::string GroupGuard::exit_text(int peer, int pid, bool left) const {
  return fmt::format("rank {} (pid {}) {} [SW0310]", job_rank(peer), pid, left ? "left the group" : "exited");
}

std::string GroupGuard::abort_text(const std::string& reason) const {
  return fmt::format("rank {} aborted: {} [SW0345]", job_rank(rank_), reason);
}

std::string GroupGuard::mismatch_text(const Descriptor& ours, int peer, const Descriptor& theirs) const {
  if (ours.is_same_call(theirs) && ours.held_shards != theirs.held_shards)
    return fmt::format("rank {} holds other shared shards than rank {}; all must drop them together [SW0704]",
                       job_rank(std::min(rank_, peer)), job_rank(std::max(rank_, peer)));
  const auto text = [&](int rank, const Descriptor& call) {
    return fmt::format("rank {} runs {} [SW0343]", job_rank(rank), describe(call));
  };
  return rank_ < peer ? text(rank_, ours) + ", " + text(peer, theirs)
                      : text(peer, theirs) + ", " + text(rank_, ours);
}

std::string GroupGuard::transfer_text(int peer, const std::string& sent, const std::string& expected) const {
  return fmt::format("rank {} sends {}, rank {} expects {} [SW0344]", job_rank(peer), sent, job_rank(rank_),
                     expected);
}

}  // namespace shardwise::comm
