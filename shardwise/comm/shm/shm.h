// The embedded backend for the ranks of one host: entry point of the directory.
//
// Ranks may be processes or threads of one process. They meet at an abstract unix socket, pass each other
// their memory by file descriptor, and nothing has a name in any file system, so nothing is left after a
// crash.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/timeout.h"

namespace shardwise::comm::shm {

struct Options {
  std::string job;  // the ranks that give the same job meet
  int rank;
  int size;
  std::chrono::milliseconds timeout = kTimeout;  // of every wait, the first meeting included
  std::optional<int64_t> one_shot_bytes;         // rank 0's holds; none: measured or tabled (one_shot.h)
  Options(std::string job_name, int rank_in_job, int job_size)
      : job(std::move(job_name)), rank(rank_in_job), size(job_size) {}
};

/// Collective: returns when all `size` ranks have come. Size one gives a group of one.
/// Errors: base::CommError when ranks are missing at the timeout; c10::ValueError for a rank outside [0,
/// size), more ranks than shared memory joins, a timeout of 0 or less, or a one_shot_bytes that no slot
/// holds.
Group connect(const Options& options);

/// Up to how many bytes the group's all_reduce goes in one shot, as all its ranks agreed when they met; none
/// where they share no memory.
std::optional<OneShotLimit> one_shot_limit(const Group& group);

}  // namespace shardwise::comm::shm
