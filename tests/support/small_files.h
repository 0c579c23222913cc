// A full disk, as a process sees it.
#pragma once
#include <signal.h>
#include <sys/resource.h>

namespace shardwise::test {

/// Limits the size of this process's files to `bytes` during its lifetime.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : old_action_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    ::signal(SIGXFSZ, old_action_);
  }

 private:
  rlimit old_limit_{};
  void (*old_action_)(int);
};

}  // namespace shardwise::test
