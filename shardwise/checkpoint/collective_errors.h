// Makes a failure on one rank an error on every rank, so that no rank continues or waits alone.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "shardwise/comm/group.h"

namespace shardwise::checkpoint {

/// Collective. Calls `work`, which must not communicate, then checks that it succeeded on every rank.
/// Cost: one all_reduce of 8 bytes.
/// Errors: a rank where `work` threw rethrows that error; the others throw c10::DistBackendError naming `op`
/// and the failed rank.
void all_ranks_or_throw(const comm::Group& group, const std::string& op, const std::function<void()>& work);

/// Returns how long rank 0 may wait for another process, at most `most`, while its peers wait for rank 0: it
/// must find out before they time out, also if it waits twice.
std::chrono::milliseconds wait_on_rank_0(const comm::Group& group, std::chrono::milliseconds most);

/// Collects a rank's validation errors, so that all ranks throw when only some of them find invalid data.
class ValidationErrors {
 public:
  /// Calls `check`, which does not communicate, and stores its c10::ValueError or base::FileError if it is
  /// the first. Returns true if `check` did not throw.
  bool collect(const std::function<void()>& check);
  /// Adds the errors of a check that comes after those of this object, but may have run beside them.
  void add(const ValidationErrors& later);
  /// Collective. Throws on every rank if any rank has stored an error.
  /// Cost: one all_gather of 8 bytes, and one of the longest text if there is an error; nothing in a group of
  /// one rank.
  /// Errors: base::CollectiveError with the text of the lowest rank that has one.
  void raise_on_any_rank(const comm::Group& group) const;

 private:
  void add(const c10::Error& error);
  std::string first_;
};

}  // namespace shardwise::checkpoint
