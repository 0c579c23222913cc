#include "shardwise/cli/program.h"

int main(int argc, char** argv) {
  return shardwise::cli::run_program({argv, argv + argc});
}
