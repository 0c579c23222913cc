// Periodic signals, like a profiler's, which interrupt system calls.
#pragma once
#include <signal.h>
#include <sys/time.h>

namespace shardwise::testing {

/// Sends SIGALRM every millisecond, to a handler that does nothing, in this scope.
class Alarms {
 public:
  Alarms() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before_);
    set_timer(1000);
  }
  ~Alarms() {
    set_timer(0);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set_timer(int period_us) {
    const itimerval every{{0, period_us}, {0, period_us}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }

  struct sigaction before_ {};
};

}  // namespace shardwise::testing
