// The worker scenarios with random programs; workers.h has the simple ones. Each receives its rank and the
// words after its name, and prints one line.
#pragma once
#include <iosfwd>
#include <string>

namespace shardwise::testing {

struct WorkerPlace {
  std::string job;
  int rank, size, timeout_ms;
};

/// "mixed SEED": runs a random program on all groups of a mesh until a rank gets SIGTERM; prints `step N` now
/// and then, and `done`.
void run_mixed(const WorkerPlace& place, std::istream& words);
/// "rounds SEED FIRST COUNT": runs the rounds FIRST to COUNT − 1 (kill_rounds.h). Prints `round N` when
/// connected, the error that ends the round, with its time, what has grown since the first round's end, `end
/// of round N`, and `done`.
void run_rounds(const WorkerPlace& place, std::istream& words);
/// "soak SEED SECONDS STEPS": runs a random program on all groups of a mesh for at least SECONDS seconds and
/// STEPS steps; prints `done` and the steps, or the resources that have leaked.
void run_soak(const WorkerPlace& place, std::istream& words);
/// "cycles SEED TIMES": connects, uses and destroys the groups of a mesh TIMES times; prints `done` and the
/// cycles, or the resources that have leaked.
void run_cycles(const WorkerPlace& place, std::istream& words);

/// "fork": rank 0 forks, and each fork misuses the group in another way; prints `done` and the statuses.
void run_fork(const WorkerPlace& place);

}  // namespace shardwise::testing
