// The program that launch_test starts: `launch_job RANKS MODE [ARGUMENT]...` launches itself, and each rank
// then does what MODE says.
#include <c10/util/Exception.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/comm/affinity.h"
#include "shardwise/comm/environment.h"
#include "shardwise/comm/launch.h"

using namespace shardwise;

namespace {

using Arguments = std::vector<std::string>;

// Announces itself, then sleeps for longer than any test lasts.
int wait_to_be_ended() {
  dprintf(STDERR_FILENO, "ready %d\n", getpid());
  for (int i = 0; i < 600; ++i) usleep(100'000);
  return 0;
}

// Ends with the exit code given for its rank.
int exit_with(const comm::LaunchContext& place, const Arguments& arguments) {
  return std::stoi(arguments.at(place.rank));
}

int be_stubborn() {
  for (int request : {SIGINT, SIGTERM, SIGHUP}) signal(request, SIG_IGN);
  return wait_to_be_ended();
}

volatile sig_atomic_t requests = 0;

// Waits for a request to end, then some more, and says how many there were.
int count_requests() {
  for (int request : {SIGINT, SIGTERM}) signal(request, [](int) { requests = requests + 1; });
  dprintf(STDERR_FILENO, "ready %d\n", getpid());
  while (requests == 0) usleep(1000);
  for (int i = 0; i < 100; ++i) usleep(1000);
  return dprintf(STDERR_FILENO, "asked %d\n", requests), 0;
}

// Rank 1 fails; the others say afterward, at length, what they waited in.
int report(const comm::LaunchContext& place) {
  if (place.rank == 1) return dprintf(STDERR_FILENO, "the cause\nand its hint\n"), 1;
  usleep(300'000);
  dprintf(STDERR_FILENO, "all_reduce #7 waited\nand a long tail\n");
  return 1;
}

int talk(const comm::LaunchContext& place) {
  printf("output of %d\n", place.rank);
  dprintf(STDERR_FILENO, "line of %d\nrest of %d", place.rank, place.rank);
  return 0;
}

int count_input(const comm::LaunchContext& place) {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  dprintf(STDERR_FILENO, "rank %d of %d in %s read %zu\n", place.rank, place.world_size, place.job.c_str(),
          input.size());
  return 0;
}

// Prints the cores it may use: "rank 0 bound, threads 1 on 0".
int bind(const comm::LaunchContext& place) {
  const std::vector<comm::Allowance> alike(place.local_size, comm::own_allowance());
  const comm::CoreShare share = comm::share_out(alike, place.local_rank);
  comm::bind_to(share);
  std::string line =
      "rank " + std::to_string(place.rank) + " bound, threads " + std::to_string(share.threads) + " on";
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &cores)) line += " " + std::to_string(i);
  }
  dprintf(STDERR_FILENO, "%s\n", line.c_str());
  return 0;
}

int act(const comm::LaunchContext& place, const std::string& mode, const Arguments& arguments) {
  if (mode == "wait") return wait_to_be_ended();
  if (mode == "exit") return exit_with(place, arguments);
  if (mode == "stubborn") return be_stubborn();
  if (mode == "count") return count_requests();
  if (mode == "report") return report(place);
  if (mode == "talk") return talk(place);
  if (mode == "input") return count_input(place);
  if (mode == "bind") return bind(place);
  TORCH_CHECK_VALUE(false, "launch_job: unknown mode ", mode);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argv, argv + argc);
  try {
    const comm::LaunchContext place = comm::launch_context_from_env();
    if (place.launcher == comm::LaunchContext::Launcher::self)
      return comm::launch(std::stoi(arguments.at(1)), arguments);
    return act(place, arguments.at(2), {arguments.begin() + 3, arguments.end()});
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", base::one_line(error).c_str());
    return 2;
  }
}
