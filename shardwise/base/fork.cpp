#include "shardwise/base/fork.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <cstring>

namespace shardwise::base {

std::atomic<uint32_t> ProcessMark::fork_depth{0};

ProcessMark::ProcessMark() : depth_(fork_depth.load(std::memory_order_relaxed)) {
  [[maybe_unused]] static const bool is_registered = [] {
    const int error = pthread_atfork(nullptr, nullptr, [] { count_fork(); });
    TORCH_CHECK(error == 0, "fork: forks of this process must be counted; got: ", std::strerror(error),
                " [SW0606]");
    return true;
  }();
}

}  // namespace shardwise::base
