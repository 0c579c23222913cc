#include "tests/comm/kill_rounds.h"

#include <signal.h>
#include <sys/prctl.h>

#include <iomanip>
#include <iostream>
#include <optional>

#include "shardwise/base/error.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {
namespace {

constexpr int64_t kLargest = 100'000;  // 800 KB in fp64: two chunks of an all_reduce
/// What malloc may keep as fragments: less than the inputs and results of a step (soak_test.cpp).
constexpr int64_t kAllowance = 16 * 8 * kLargest + kQuarantineBytes;

Groups connect_round(const WorkerPlace& place, const KillRound& round) {
  comm::shm::connect(options(round.start_of(place.job), place.rank, place.size));
  const int timeout_ms = round.is_stop() ? int(1000 * KillRound::kStopTimeout) : place.timeout_ms;
  const auto rank_options = options(round.world_of(place.job), place.rank, place.size, timeout_ms);
  return round.on_mesh ? connect_mesh(rank_options) : connect_world(rank_options);
}

void report(const base::CommError& error, const std::string& call, double at_s) {
  std::cout << std::fixed << std::setprecision(9) << "error " << at_s << " " << error.where().elapsed_s
            << " '" << call << "': " << base::one_line(error) << std::endl;
}

/// Runs the round's program until the fault ends it.
void run_round(const WorkerPlace& place, const KillRound& round) {
  const Groups groups = connect_round(place, round);
  Mixed mixed(groups, round.program, round.is_stop() ? Mixed::Calls::collectives : Mixed::Calls::all,
              kLargest);
  std::cout << "round " << round.number << std::endl;
  try {
    while (true) mixed.step();
  } catch (const base::CommError& error) {
    report(error, mixed.call(), monotonic_s());
    for (const TestGroup& group : groups) group.backend->comm::C10dBackend::abort(base::one_line(error));
  }
}

}  // namespace

KillRound::KillRound(unsigned seed, int number, int ranks) : number(number) {
  std::seed_seq sequence{seed, unsigned(number)};
  std::mt19937 random(sequence);
  fault = number % 5 == 4 ? Fault::stop : Fault::kill;
  victim = int(random() % unsigned(ranks));
  program = unsigned(random());
  on_mesh = random() % 2 == 0 && !is_stop();
  delay_us = int(random() % 100'000);
}

void run_rounds(const WorkerPlace& place, std::istream& words) {
  unsigned seed = 0;
  int first = 0, count = 0;
  words >> seed >> first >> count;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the program has no end of its own
  std::optional<Resources> before;
  for (int number = first; number < count; ++number) {
    run_round(place, KillRound(seed, number, place.size));
    const Resources now;
    const std::string grown = before ? growth(*before, now, {.private_bytes = kAllowance}) : "";
    if (!before) before = now;  // allocates what lives until the end
    if (!grown.empty()) std::cout << "leaks" << grown << "\n";
    std::cout << "end of round " << number << std::endl;
  }
  std::cout << "done" << std::endl;
}

}  // namespace shardwise::testing
