#include "tests/comm/workers.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/launch/process_group.h"
#include "tests/comm/scenarios.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/coverage/counts.h"
#include "tests/support/deadline.h"

namespace shardwise::testing {
namespace {

constexpr const char* kVariable = "SHARDWISE_TEST_WORKER";

void bind_to_share(const comm::Group& group) {
  std::cout << "took " << launch::bind_to_core_share(group) << " threads on";
  cpu_set_t processors;
  sched_getaffinity(0, sizeof(processors), &processors);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &processors)) std::cout << " " << i;
  }
  std::cout << std::endl;
}

void run_part(const WorkerPlace& place) {
  const comm::Group group = connect_to_workers(place.job, place.rank, place.size, place.timeout_ms);
  const comm::Group part = place.rank < 2 ? connect_part(group, place.job, {0, 1}) : comm::Group();
  group.barrier();
  while (true) pause();
}

void run_simple(const std::string& scenario, const WorkerPlace& place) {
  const comm::Group group = connect_to_workers(place.job, place.rank, place.size, place.timeout_ms);
  if (scenario == "exit" || scenario == "leave" || scenario == "idle") group.barrier();
  while (scenario == "idle") pause();
  if (scenario == "exit") _exit(0);
  if (scenario == "share") bind_to_share(group);
  while (scenario != "leave" && scenario != "share") run_collective(group, scenario);
}

/// Limits this process to `more` further open files.
void allow_descriptors(int more) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t most = 0;
  for (int free = 0; free < more; ++most) free += fcntl(int(most), F_GETFD) < 0;
  while (fcntl(int(most), F_GETFD) >= 0) ++most;
  limit.rlim_cur = most;
  TORCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

/// The undefined behavior sanitizer checks a new type through a pipe, so a type that it first sees when no
/// descriptors are left is reported as "not an object" of that type.
void throw_one_error_for_the_sanitizer() {
  try {
    throw base::CommError({}, "shown");
  } catch (const std::exception& error) {
    TORCH_CHECK(dynamic_cast<const base::CommError&>(error).where().peer == -1);
    TORCH_CHECK(!base::one_line(error).empty());
  }
}

/// Writes the counts of a coverage build, which needs descriptors: the test kills this process.
void write_counts_without_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  TORCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  write_counts();
}

void run_short(const WorkerPlace& place, std::istream& words) {
  int rank = 0, descriptors = 0;
  words >> rank >> descriptors;
  comm::shm::connect(options(place.job + "-start", place.rank, place.size));
  throw_one_error_for_the_sanitizer();
  if (place.rank == rank) allow_descriptors(descriptors);
  try {
    comm::shm::connect(options(place.job, place.rank, place.size, place.timeout_ms)).barrier();
    std::cout << "connected" << std::endl;
  } catch (const std::exception& error) {
    std::cout << base::one_line(error) << std::endl;
  }
  write_counts_without_limit();
  close(STDOUT_FILENO);
  while (true) pause();  // peers must not detect that this process exits
}

/// Sends descriptors of this process that stay in flight: no process receives them yet.
void send_descriptors(int socket, int count) {
  const std::vector<int> files(size_t(count), STDOUT_FILENO);
  std::vector<std::byte> control(CMSG_SPACE(sizeof(int) * files.size()));
  char one = 0;
  iovec body{&one, 1};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * files.size());
  std::memcpy(CMSG_DATA(header), files.data(), sizeof(int) * files.size());
  TORCH_CHECK(sendmsg(socket, &message, 0) == 1, "sendmsg");
}

/// Changes the user: descriptors in flight are counted per user, and root has no limit.
void become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0) TORCH_CHECK(setresuid(kNobody, kNobody, kNobody) == 0, "setresuid");
}

void run_crowded(const WorkerPlace& place, std::istream& words) {
  constexpr int kLimit = 64, kInFlight = 100;
  int in_flight_ms = 0;
  words >> in_flight_ms;
  become_nobody();
  const rlimit limit{kLimit, kLimit};
  TORCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  int ends[2];
  TORCH_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  send_descriptors(ends[0], kInFlight);
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(in_flight_ms));
    close(ends[1]);
  });
  on_threads(place.size, [&](int rank, const std::string& job) {
    try {
      // Rank 1, which sends first, has the shorter timeout.
      comm::shm::ConnectOptions group_options = options(job, rank, place.size, place.timeout_ms / (rank + 1));
      group_options.one_shot_bytes = 1024;  // the saved limit's file belongs to another user
      comm::shm::connect(group_options).barrier();
      std::cout << "connected\n" << std::flush;
    } catch (const std::exception& error) {
      std::cout << base::one_line(error) << std::endl;
    }
  });
  reader.join();
}

/// The last rank does not exit before its peers: they must not detect its end instead of its abort.
void run_no_memory(const WorkerPlace& place) {
  const comm::Group group = connect_to_workers(place.job, place.rank, place.size, place.timeout_ms);
  group.barrier();
  const bool is_last = place.rank == place.size - 1;
  try {
    group.all_reduce(is_last ? at::full({1}, 1.f).expand({int64_t{1} << 48}) : at::full({3000}, 1.f));
  } catch (const c10::Error& error) {
    std::cout << base::one_line(error) << std::endl;
  }
  if (is_last) std::this_thread::sleep_for(std::chrono::seconds(2));
}

/// As under `ulimit -f`, in a program that does not ignore its signal.
void run_small_files(const WorkerPlace& place) {
  const rlimit limit{1 << 20, 1 << 20};
  TORCH_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
  try {
    comm::shm::connect(options(place.job, place.rank, place.size, place.timeout_ms));
  } catch (const c10::Error& error) {
    std::cout << base::one_line(error) << std::endl;
  }
}

void run_scenario(const std::string& scenario, const WorkerPlace& place, std::istream& words) {
  if (scenario == "mixed") return run_mixed(place, words);
  if (scenario == "rounds") return run_rounds(place, words);
  if (scenario == "soak") return run_soak(place, words);
  if (scenario == "cycles") return run_cycles(place, words);
  if (scenario == "short") return run_short(place, words);
  if (scenario == "crowded") return run_crowded(place, words);
  if (scenario == "no_memory") return run_no_memory(place);
  if (scenario == "small_files") return run_small_files(place);
  if (scenario == "fork") return run_fork(place);
  if (scenario == "part") return run_part(place);
  run_simple(scenario, place);
}

}  // namespace

void run_collective(const comm::Group& group, const std::string& name) {
  if (name == "all_reduce") {
    group.all_reduce(at::full({3000}, 1.f));
  } else if (name == "share_shard") {
    const auto split = base::Split::even("x", 30, group.size());
    const auto shards = group.share_shard(at::full({split.range(group.rank()).size()}, 1.f), split);
    for (int peer = 0; peer < group.size(); ++peer) shards->get(peer);
  } else if (name == "all_reduce_async") {
    group.all_reduce_async_(group.empty({3000}, at::kFloat).fill_(1))->wait();
  } else {
    group.barrier();
  }
}

comm::Group connect_to_workers(const std::string& job, int rank, int size, int timeout_ms) {
  comm::shm::connect(options(job + "-start", rank, size));
  return comm::shm::connect(options(job, rank, size, timeout_ms));
}

comm::Group connect_part(const comm::Group& group, const std::string& job, const std::vector<int>& ranks) {
  const auto own = std::ranges::find(ranks, group.rank());
  comm::shm::ConnectOptions part =
      options(job + "-part-" + std::to_string(ranks.front()), int(own - ranks.begin()), int(ranks.size()));
  part.part = {group, ranks};
  return comm::shm::connect(part);
}

Worker::Worker(const std::string& scenario, const std::string& job, int rank, int size, int timeout_ms) {
  std::ostringstream variable;
  variable << kVariable << "=" << job << " " << rank << " " << size << " " << timeout_ms << " " << scenario;
  std::string setting = variable.str();
  std::vector<char*> environment = {setting.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  std::string arguments[] = {"worker", "--gtest_filter=Worker.DISABLED_Run",
                             "--gtest_also_run_disabled_tests"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  int ends[2];
  TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  TORCH_CHECK(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environment.data()) == 0,
              "spawn");
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  pipe_ = ends[0];
}

Worker::Worker(Worker&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      printed_(std::move(other.printed_)) {}

Worker::~Worker() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(pipe_);
}

void Worker::signal(int number) const {
  kill(pid_, number);
}

bool Worker::read_more(double limit_s) {
  pollfd readable{pipe_, POLLIN, 0};
  if (poll(&readable, 1, static_cast<int>(scaled_s(limit_s) * 1e3)) == 0) {
    ADD_FAILURE() << "a worker printed nothing for " << scaled_s(limit_s)
                  << " s, and is killed; before: " << printed_;
    signal(SIGKILL);
    return false;
  }
  char buffer[4096];
  const ssize_t n = read(pipe_, buffer, sizeof(buffer));
  if (n > 0) printed_.append(buffer, size_t(n));
  return n > 0;
}

void Worker::wait_for(const std::string& text) {
  while (printed_.find(text) == std::string::npos) {
    if (!read_more(kSilence)) {
      ADD_FAILURE() << "a worker ended without '" << text << "': " << printed_;
      return;
    }
  }
}

const std::string& Worker::printed() {
  pollfd readable{pipe_, POLLIN, 0};
  while (poll(&readable, 1, /*timeout=*/0) == 1 && read_more(kSilence)) continue;
  return printed_;
}

std::string Worker::output(double limit_s) {
  while (read_more(limit_s)) continue;
  return printed_;
}

int Worker::wait() {
  int status = -1;
  TORCH_CHECK(waitpid(pid_, &status, 0) == pid_, "waitpid");
  close(pipe_);
  pid_ = pipe_ = -1;
  return status;
}

std::vector<Worker> start_workers(const std::string& scenario, int size, int timeout_ms) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (int rank = 0; rank < size; ++rank) workers.emplace_back(scenario, job, rank, size, timeout_ms);
  return workers;
}

std::vector<std::string> outputs_of(std::vector<Worker>& workers, double limit_s) {
  std::vector<std::string> outputs;
  for (Worker& worker : workers) outputs.push_back(worker.output(limit_s));
  return outputs;
}

TEST(Worker, DISABLED_Run) {
  ASSERT_NE(getenv(kVariable), nullptr) << "run by the tests of this program";
  std::istringstream words(getenv(kVariable));
  WorkerPlace place;
  std::string scenario;
  words >> place.job >> place.rank >> place.size >> place.timeout_ms >> scenario;
  at::set_num_threads(1);
  try {
    run_scenario(scenario, place, words);
  } catch (const base::CommError& error) {
    std::cout << base::one_line(error) << std::endl;
  }
}

}  // namespace shardwise::testing
