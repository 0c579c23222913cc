#include "shardwise/comm/group_guard.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "shardwise/base/error.h"

namespace shardwise::comm {

void GroupGuard::check_member(std::string_view op) const {
  TORCH_CHECK_VALUE(!has_left_, op, ": the group must not be used after shutdown; got a call [SW0504]");
}

void GroupGuard::throw_failure(const FailedWait& wait, const std::string& what) const {
  throw base::CommError(
      {std::string(wait.op), rank_, wait.peer, wait.sequence, wait.elapsed.count(), wait.limit.count()},
      what);
}

std::string GroupGuard::abort_text(const std::string& reason) const {
  return fmt::format("rank {} aborted: {} [SW0345]", rank_, reason);
}

std::string GroupGuard::mismatch_text(const Descriptor& ours, int peer, const Descriptor& theirs) const {
  const auto text = [](int rank, const Descriptor& call) {
    return fmt::format("rank {} runs {} [SW0343]", rank, describe(call));
  };
  return rank_ < peer ? text(rank_, ours) + ", " + text(peer, theirs)
                      : text(peer, theirs) + ", " + text(rank_, ours);
}

std::string GroupGuard::transfer_text(int peer, const std::string& sent, const std::string& expected) const {
  return fmt::format("rank {} sends {}, rank {} expects {} [SW0344]", peer, sent, rank_, expected);
}

}  // namespace shardwise::comm
