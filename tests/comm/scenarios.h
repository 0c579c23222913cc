// What workers do besides the simple scenarios of workers.h: each takes its place in the job and the words
// after its name, and prints one line.
#pragma once
#include <iosfwd>
#include <string>

namespace shardwise::testing {

struct WorkerPlace {
  std::string job;
  int rank, size, timeout_ms;
};

/// "mixed SEED STEPS CALLS [VICTIM SIGNAL]": so many steps of a mixed program on the "world" alone, on a
/// "mesh" too, or of "collectives", without messages, on the world; prints `done`, or the error. The rank
/// VICTIM sends itself the signal at a moment drawn from the seed.
void run_mixed(const WorkerPlace& place, std::istream& words);
/// "soak SEED SECONDS STEPS": a mixed program on all groups of a mesh for so long, and so many steps at
/// least; prints `done` and the steps, or what the process holds more than before.
void run_soak(const WorkerPlace& place, std::istream& words);
/// "cycles SEED TIMES": makes the groups of a mesh, uses and drops them, so many times; prints the same.
void run_cycles(const WorkerPlace& place, std::istream& words);

}  // namespace shardwise::testing
