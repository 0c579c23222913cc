// The three kinds of error and how their one line reads: `op: rule; got values; hint`.
//
// The caller's mistake is c10::ValueError (TORCH_CHECK_VALUE), a broken invariant of ours
// TORCH_INTERNAL_ASSERT; this file adds the third, a peer's or the transport's, and the first as all ranks
// have it. The library never exits.
#pragma once
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace shardwise::base {

/// A collective that could not finish: a peer died, stopped, left, or runs another program.
class CommError : public c10::DistBackendError {
 public:
  struct Where {
    std::string op;         // "all_reduce"
    int rank = 0;           // this rank
    int peer = -1;          // the rank waited for; -1 when no single one is to blame
    uint64_t sequence = 0;  // number of the collective in its group
    double elapsed_s = 0;   // spent waiting
    double limit_s = 0;     // the group's timeout
  };
  CommError(Where where, const std::string& what);
  const Where& where() const { return where_; }

 private:
  Where where_;
};

/// The caller's mistake that only the ranks could find, thrown by all of them with one text: the first is to
/// tell it.
class CollectiveError : public c10::ValueError {
 public:
  explicit CollectiveError(const std::string& what);
};

/// The one-line text of an exception, without the C++ stack that c10 appends.
std::string one_line(const std::exception& error);

}  // namespace shardwise::base
