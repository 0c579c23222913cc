#include <cstdio>
#include <cstdlib>

#include "shardwise/cli/program.h"

int main(int argc, char** argv) {
  const int exit_code = shardwise::cli::run_program({argv, argv + argc});
  // The libraries' own tidying up takes a tenth of a second, in which the other ranks wait for a failed one.
  std::fflush(nullptr);
  std::_Exit(exit_code);
}
