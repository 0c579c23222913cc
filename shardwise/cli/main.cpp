#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "shardwise/cli/program.h"

// There in a build with that sanitizer.
extern "C" void __lsan_do_leak_check() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is an error like any other, that names its file
  const int exit_code = shardwise::cli::run_program({argv, argv + argc});
  // The libraries' own tidying up takes a tenth of a second, in which the other ranks wait for a failed one.
  std::fflush(nullptr);
  if (exit_code == 0 && __lsan_do_leak_check) __lsan_do_leak_check();  // which _Exit would leave out
  std::_Exit(exit_code);
}
