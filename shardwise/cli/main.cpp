#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "shardwise/cli/program.h"

int main(int argc, char** argv) {
  const int exit_code = shardwise::cli::run_program({argv, argv + argc});
  // The libraries' own tidying up takes a tenth of a second, in which the other ranks wait for a failed one.
  signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is an error like any other, that names its file
  std::fflush(nullptr);
  std::_Exit(exit_code);
}
