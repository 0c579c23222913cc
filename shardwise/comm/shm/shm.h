// The embedded shared-memory backend for the ranks of one node: entry point of the directory.
//
// Ranks may be processes or threads of one process. They rendezvous at an abstract unix socket and send each
// other their memory as file descriptors. Nothing has a name in any file system, so nothing is left after a
// crash.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/secret.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/one_shot.h"

namespace shardwise::comm::shm {

/// The group of a whole job, whose ranks share memory, and those of its ranks that form another one.
struct JobPart {
  Group group;             // of all ranks
  std::vector<int> ranks;  // ascending
};

/// How a rank joins its group.
struct ConnectOptions {
  std::string job;                               // ranks with the same job form a group
  int rank;                                      // in [0, size)
  int size;                                      // number of ranks
  base::Secret secret;                           // equal on all ranks; others are refused
  std::chrono::milliseconds timeout = kTimeout;  // of every wait, the rendezvous included
  /// Set for a part of a job: a failure or the exit of any rank of the job is a failure of this group too,
  /// and its failures are the job's. Errors name ranks as the job does. Unset: this is the whole job.
  std::optional<JobPart> part = {};
  std::optional<int64_t> one_shot_bytes;  // rank 0's applies to all; unset: measured or default (one_shot.h)
  /// A rank of a job, with the default timeout.
  ConnectOptions(std::string job_name, int rank_in_job, int job_size)
      : job(std::move(job_name)), rank(rank_in_job), size(job_size) {}
};

/// Collective: returns when all `size` ranks have connected. Size one returns a group of one.
/// Errors: base::CommError if ranks are missing at the timeout; c10::ValueError if the rank is outside
/// [0, size), the size is above kMaxRanks (limits.h), the timeout is 0 or less, one_shot_bytes exceeds a
/// slot, or the job's group does not share memory.
Group connect(const ConnectOptions& options);

/// Returns the largest message that the group reduces by the one-shot all_reduce, equal on all its ranks;
/// nullopt if they do not share memory.
std::optional<OneShotLimit> one_shot_limit(const Group& group);

}  // namespace shardwise::comm::shm
