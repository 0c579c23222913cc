#include "shardwise/checkpoint/file_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "shardwise/base/clock.h"

namespace shardwise::checkpoint {

// flock has no time limit of its own.
bool lock_within(const base::Fd& file, std::chrono::milliseconds max_wait) {
  constexpr useconds_t kPause = 20'000;
  for (const base::Stopwatch watch;; usleep(kPause)) {
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || watch.milliseconds() >= static_cast<double>(max_wait.count())) return false;
  }
}

}  // namespace shardwise::checkpoint
