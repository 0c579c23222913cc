// One rank's failure is every rank's: what a save or load needs so that nobody goes on, or waits, alone.
#pragma once
#include <functional>
#include <string>

#include "shardwise/comm/group.h"

namespace shardwise::checkpoint {

/// Collective. Calls `work`, then has all ranks say whether theirs threw.
/// Cost: one all_reduce of 8 bytes. `work` communicates nothing itself.
/// Errors: a rank's own is thrown again there; the others throw c10::DistBackendError naming `op` and the
/// rank.
void all_ranks_or_throw(const comm::Group& group, const std::string& op, const std::function<void()>& work);

/// What is wrong with the numbers that each rank has read: one may find what the others do not.
class ValidationErrors {
 public:
  /// Calls `check`, which reads and sends nothing, and remembers its c10::ValueError if it is the first.
  /// Returns whether there was none.
  bool collect(const std::function<void()>& check);
  /// Collective. Cost: one all_gather of 8 bytes, and of the longest text if there is one; nothing in a group
  /// of one.
  /// Errors: base::CollectiveError, on every rank that of the lowest that remembers one.
  void agree(const comm::Group& group) const;

 private:
  std::string first_;
};

}  // namespace shardwise::checkpoint
