#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "shardwise/cli/program.h"

// There in a build with that sanitizer.
extern "C" void __lsan_do_leak_check() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace {

/// A standard stream that the caller has closed stays one that cannot be used. Otherwise the next file that
/// is opened, or the ranks' shared memory, would take its number and what is printed.
void keep_closed_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free number, this one; of the wrong direction, so that its use is an error.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_closed_streams();
  signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is an error like any other, that names its file
  const int exit_code = shardwise::cli::run_program({argv, argv + argc});
  // The libraries' own tidying up takes a tenth of a second, in which the other ranks wait for a failed one.
  std::fflush(nullptr);
  if (exit_code == 0 && __lsan_do_leak_check) __lsan_do_leak_check();  // which _Exit would leave out
  std::_Exit(exit_code);
}
