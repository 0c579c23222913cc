#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "shardwise/base/exit.h"
#include "shardwise/cli/program.h"

namespace {

/// Keeps the descriptors of closed standard streams occupied and unusable. Otherwise the next opened file, or
/// the ranks' shared memory, would get such a descriptor and with it the printed output.
void keep_closed_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open returns the lowest free descriptor, which is `stream`; its access mode makes every use an error.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_closed_streams();
  signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` then fails with an error that names the file
  shardwise::base::exit_quickly(shardwise::cli::run_program({argv, argv + argc}));
}
