#include "shardwise/base/exit.h"

#include <cstdio>
#include <cstdlib>

// Defined only in builds with LeakSanitizer.
extern "C" void __lsan_do_leak_check() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace shardwise::base {

void exit_quickly(int exit_code) {
  std::fflush(nullptr);
  if (exit_code == 0 && __lsan_do_leak_check) __lsan_do_leak_check();  // _Exit skips it
  std::_Exit(exit_code);
}

}  // namespace shardwise::base
