// The program that launch_test starts: `launch_job RANKS MODE [ARGUMENT]...` launches itself, and each rank
// runs MODE. SHARDWISE_TEST_LAUNCHER changes the launcher (Surroundings).
#include <c10/util/Exception.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/base/environment.h"
#include "shardwise/base/error.h"
#include "shardwise/launch/affinity.h"
#include "shardwise/launch/environment.h"
#include "shardwise/launch/launch.h"

using namespace shardwise;

namespace {

using Arguments = std::vector<std::string>;

// Prints that it is ready, then sleeps for longer than any test lasts.
int wait_to_be_killed() {
  dprintf(STDERR_FILENO, "ready %d\n", getpid());
  for (int i = 0; i < 600; ++i) usleep(100'000);
  return 0;
}

// Exits with the code given for its rank.
int exit_with(const launch::LaunchContext& context, const Arguments& arguments) {
  return std::stoi(arguments.at(context.rank));
}

int be_stubborn() {
  for (int request : {SIGINT, SIGTERM, SIGHUP}) signal(request, SIG_IGN);
  return wait_to_be_killed();
}

volatile sig_atomic_t requests = 0;

// Waits for a termination signal, then some more, and prints how many it received.
int count_requests() {
  for (int request : {SIGINT, SIGTERM}) signal(request, [](int) { requests = requests + 1; });
  dprintf(STDERR_FILENO, "ready %d\n", getpid());
  while (requests == 0) usleep(1000);
  for (int i = 0; i < 100; ++i) usleep(1000);
  return dprintf(STDERR_FILENO, "requests %d\n", requests), 0;
}

// Rank 1 fails; the other ranks then print several lines about what they waited for.
int report(const launch::LaunchContext& context) {
  if (context.rank == 1) return dprintf(STDERR_FILENO, "the cause\nand its hint\n"), 1;
  usleep(300'000);
  dprintf(STDERR_FILENO, "all_reduce #7 waited\nand a long tail\n");
  return 1;
}

// Rank 1 prints lines without end.
int flood(const launch::LaunchContext& context) {
  if (context.rank == 1) {
    const std::string lines = std::string(100, 'x') + "\n";
    dprintf(STDERR_FILENO, "ready %d\n", getpid());
    while (write(STDERR_FILENO, lines.data(), lines.size()) > 0) {
    }
  }
  return wait_to_be_killed();
}

// Rank 1 prints one line of 32 MiB.
int print_long_line(const launch::LaunchContext& context) {
  if (context.rank == 0) return 0;
  const std::string part(size_t{1} << 20, 'x');
  for (int i = 0; i < 32; ++i) dprintf(STDERR_FILENO, "%s", part.c_str());
  return 0;
}

int print_secret(const launch::LaunchContext& context) {
  return dprintf(STDERR_FILENO, "secret %s\n", context.secret.text().c_str()), 0;
}

int talk(const launch::LaunchContext& context) {
  printf("output of %d\n", context.rank);
  dprintf(STDERR_FILENO, "line of %d\nrest of %d", context.rank, context.rank);
  return 0;
}

int count_input(const launch::LaunchContext& context) {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  dprintf(STDERR_FILENO, "rank %d of %d in %s read %zu\n", context.rank, context.world_size,
          context.job.c_str(), input.size());
  return 0;
}

// Prints the processors that it is bound to: "rank 0 bound, threads 1 on 0".
int bind(const launch::LaunchContext& context) {
  const std::vector<launch::AvailableCpus> available(context.local_size, launch::available_cpus());
  const launch::CoreShare share = launch::share_out(available, context.local_rank);
  launch::bind_to(share);
  std::string line =
      "rank " + std::to_string(context.rank) + " bound, threads " + std::to_string(share.threads) + " on";
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &cores)) line += " " + std::to_string(i);
  }
  dprintf(STDERR_FILENO, "%s\n", line.c_str());
  return 0;
}

// Prints the number of its open descriptors: "rank 0 has 3 descriptors".
int count_descriptors(const launch::LaunchContext& context) {
  const std::filesystem::directory_iterator open("/proc/self/fd");  // which is one of them
  dprintf(STDERR_FILENO, "rank %d has %td descriptors\n", context.rank,
          std::distance(begin(open), end(open)) - 1);
  return 0;
}

int act(const launch::LaunchContext& context, const std::string& mode, const Arguments& arguments) {
  if (mode == "wait") return wait_to_be_killed();
  if (mode == "exit") return exit_with(context, arguments);
  if (mode == "stubborn") return be_stubborn();
  if (mode == "count") return count_requests();
  if (mode == "report") return report(context);
  if (mode == "talk") return talk(context);
  if (mode == "flood") return flood(context);
  if (mode == "line") return print_long_line(context);
  if (mode == "secret") return print_secret(context);
  if (mode == "input") return count_input(context);
  if (mode == "bind") return bind(context);
  if (mode == "descriptors") return count_descriptors(context);
  TORCH_CHECK_VALUE(false, "launch_job: unknown mode ", mode);
}

/// Limits this process to as many more descriptors as its launch needs: a pipe for signals, and of rank 0 a
/// pidfd, of rank 1 a pipe.
void limit_descriptors() {
  std::array<int, 5> needed;  // the lowest free ones, which need not be consecutive
  for (int& descriptor : needed) descriptor = dup(STDIN_FILENO);
  for (const int descriptor : needed) close(descriptor);
  const rlimit limit{rlim_t(needed.back()) + 1, rlim_t(needed.back()) + 1};
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// What surrounds the launcher while it runs.
class Surroundings {
 public:
  explicit Surroundings(const std::string& kind) {
    if (kind == "busy thread")
      thread_ = std::thread([this] {
        while (!is_over_) continue;
      });
    if (kind == "reaper") thread_ = std::thread([this] { reap_children(); });
    if (kind == "large environment") setenv("SHARDWISE_TEST_LARGE", std::string(200'000, 'x').c_str(), 1);
    if (kind == "few descriptors") limit_descriptors();
  }
  ~Surroundings() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void reap_children() {
    while (!is_over_) {
      if (waitpid(-1, nullptr, 0) < 0) usleep(100);
    }
  }

  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

/// Does what a rank does.
int run_rank(const Arguments& arguments) try {
  return act(launch::launch_context_from_env(), arguments.at(2), {arguments.begin() + 3, arguments.end()});
} catch (const std::exception& error) {
  fprintf(stderr, "%s\n", base::one_line(error).c_str());
  return 2;
}

/// Ranks are copies of the launcher, unless SHARDWISE_TEST_EXECUTES is set.
std::function<int()> main_of(const Arguments& arguments) {
  if (base::env_text("SHARDWISE_TEST_EXECUTES")) return {};
  return [arguments] { return run_rank(arguments); };
}

int launch_in_surroundings(const Arguments& arguments) {
  const std::string kind = base::env_text("SHARDWISE_TEST_LAUNCHER").value_or("");
  const Surroundings surroundings(kind);
  const auto before_start = [&] {
    if (kind == "signal") raise(SIGTERM);
  };
  const auto handler = [](int) {};
  if (kind == "handler") signal(SIGCHLD, handler);
  int code = 0;
  for (int run = 0; run < base::env_count("SHARDWISE_TEST_RUNS", /*least=*/1, /*fallback=*/1); ++run)
    code = launch::launch_ranks(std::stoi(arguments.at(1)), arguments, {before_start, main_of(arguments)});
  const bool is_restored = kind != "handler" || signal(SIGCHLD, SIG_DFL) == +handler;
  return is_restored ? code : 99;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argv, argv + argc);
  try {
    if (launch::launch_context_from_env().launcher == launch::LaunchContext::Launcher::self)
      return launch_in_surroundings(arguments);
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", base::one_line(error).c_str());
    return 2;
  }
  return run_rank(arguments);
}
