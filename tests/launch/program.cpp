#include "tests/launch/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "tests/support/deadline.h"

namespace shardwise::testing {
namespace {

constexpr useconds_t kPollInterval = 5000;

std::string contents(int fd) {
  std::string text(lseek(fd, 0, SEEK_END), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

// Opens the file again for the program, so that reading here does not move the offset at which the program
// writes.
int reopen(int fd, int flags) {
  return open(("/proc/self/fd/" + std::to_string(fd)).c_str(), flags);
}

// Opens the other end of `terminal` as the controlling terminal of this process.
int open_controlling_terminal(int terminal) {
  setsid();
  const int fd = open(ptsname(terminal), O_RDWR);
  ioctl(fd, TIOCSCTTY, 0);
  return fd;
}

[[noreturn]] void exec_program(std::vector<std::string> argv, const Program::Options& options, int input,
                               int output, int errors) {
  for (const auto& variable : options.environment) putenv(strdup(variable.c_str()));
  for (int ignored : options.ignored_signals) signal(ignored, SIG_IGN);
  dup2(options.has_terminal ? open_controlling_terminal(input) : reopen(input, O_RDONLY), STDIN_FILENO);
  dup2(reopen(output, O_WRONLY | O_APPEND), STDOUT_FILENO);
  dup2(reopen(errors, O_WRONLY | O_APPEND), STDERR_FILENO);
  std::vector<char*> pointers;
  for (auto& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  _exit(127);
}

// Returns whether the process with that directory in /proc was started with "NAME=value" in its environment.
bool has_variable(const std::filesystem::path& process, const std::string& variable) {
  std::ifstream file(process / "environ");
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  return environment.find(variable + '\0') != std::string::npos;
}

/// Returns whether launch_ranks has named the process so, or started it with its rank in the environment.
bool is_rank(const std::filesystem::path& process, int rank) {
  std::string name;
  std::getline(std::ifstream(process / "comm"), name);
  return name.ends_with(":" + std::to_string(rank)) ||
         has_variable(process, "SHARDWISE_RANK=" + std::to_string(rank));
}

}  // namespace

Program::Program(const std::vector<std::string>& argv, const Options& options)
    : input_(memfd_create("input", MFD_CLOEXEC)),
      output_(memfd_create("output", MFD_CLOEXEC)),
      errors_(memfd_create("errors", MFD_CLOEXEC)) {
  EXPECT_EQ(write(input_, options.input.data(), options.input.size()),
            static_cast<ssize_t>(options.input.size()));
  if (options.has_terminal) {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_TRUE(grantpt(terminal_) == 0 && unlockpt(terminal_) == 0);
  }
  pid_ = fork();
  if (pid_ == 0) exec_program(argv, options, options.has_terminal ? terminal_ : input_, output_, errors_);
}

Program::~Program() {
  if (is_running_) {
    send(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int fd : {input_, output_, errors_, terminal_}) close(fd);
}

void Program::press(char key) const {
  EXPECT_EQ(write(terminal_, &key, 1), 1);
}

int Program::wait(double limit_s) {
  const base::Stopwatch watch;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (watch.seconds() > scaled_s(limit_s)) {
      ADD_FAILURE() << "still running after " << scaled_s(limit_s) << " s; its standard error: " << errors();
      send(SIGKILL);
      limit_s = 1e9;
    }
    usleep(kPollInterval);
  }
  is_running_ = false;
  return status;
}

int Program::wait_within(double deadline_s, std::source_location where) {
  const base::Stopwatch since_call;
  const int status = wait(/*limit_s=*/60);
  expect_within(since_call.seconds(), deadline_s, where);
  return status;
}

std::string Program::output() const {
  return contents(output_);
}
std::string Program::errors() const {
  return base::without_code(contents(errors_));
}
std::string Program::coded_errors() const {
  return contents(errors_);
}

std::vector<std::string> Program::wait_for_lines(const std::string& text, size_t count) const {
  std::vector<std::string> found;
  for (const base::Stopwatch watch; found.size() < count && watch.seconds() < scaled_s(20);
       usleep(kPollInterval)) {
    found.clear();
    std::istringstream lines(errors());
    for (std::string line; std::getline(lines, line);) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
  }
  EXPECT_EQ(found.size(), count) << errors();
  return found;
}

std::vector<std::string> torchrun_environment(int rank, int size, const std::string& id) {
  const std::string number = std::to_string(rank), all = std::to_string(size);
  return {"RANK=" + number,
          "WORLD_SIZE=" + all,
          "LOCAL_RANK=" + number,
          "LOCAL_WORLD_SIZE=" + all,
          "MASTER_ADDR=localhost",
          "MASTER_PORT=29511",
          "TORCHELASTIC_RUN_ID=" + id + "-" + std::to_string(getpid()),
          "TORCHELASTIC_RESTART_COUNT=0"};
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool send_to(pid_t pid, int signal) {
  return pid > 1 && kill(pid, signal) == 0;
}

std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (has_variable(entry.path(), variable)) found.push_back(std::stoi(name));
  }
  return found;
}

pid_t pid_of_rank(int rank, const std::string& mark) {
  for (const base::Stopwatch watch; watch.seconds() < scaled_s(kStartLimit); usleep(kPollInterval)) {
    for (const pid_t pid : processes_with(mark)) {
      if (is_rank("/proc/" + std::to_string(pid), rank)) return pid;
    }
  }
  ADD_FAILURE() << "no rank " << rank << " after " << kStartLimit << " s";
  return -1;
}

}  // namespace shardwise::testing
