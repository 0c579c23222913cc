#include "shardwise/base/fork.h"

#include <pthread.h>

namespace shardwise::base {

std::atomic<uint32_t> ProcessMark::fork_depth{0};

ProcessMark::ProcessMark() : depth_(fork_depth.load(std::memory_order_relaxed)) {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count_fork(); });
  static_cast<void>(registered);
}

}  // namespace shardwise::base
