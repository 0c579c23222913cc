// Jobs from the outside: exit codes, lines on standard error, and that no process survives the job. The
// deadlines are those of the fault handling itself.
#include "shardwise/launch/launch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "shardwise/base/clock.h"
#include "tests/launch/program.h"
#include "tests/support/deadline.h"
#include "tests/support/environment.h"

namespace shardwise::testing::launch_test {
namespace {

constexpr double kDeadline = 2;  // seconds from a fault to the end of all processes

class JobTest : public ::testing::Test {
 protected:
  // The ranks inherit the mark, by which the test finds processes that survive the job.
  const std::string mark_ = "SHARDWISE_TEST_MARK=" + std::to_string(getpid());

  Program::Options marked() const { return {.environment = {mark_}}; }

  /// Of a launcher in surroundings of that kind (job.cpp), which launches so many jobs one by one.
  Program::Options next_to(const std::string& kind, int runs = 1) const {
    return {.environment = {mark_, "SHARDWISE_TEST_LAUNCHER=" + kind,
                            "SHARDWISE_TEST_RUNS=" + std::to_string(runs)}};
  }

  static std::vector<std::string> job(int ranks, std::vector<std::string> mode) {
    std::vector<std::string> argv{LAUNCH_JOB, std::to_string(ranks)};
    argv.insert(argv.end(), mode.begin(), mode.end());
    return argv;
  }

  static pid_t pid_in(const std::string& ready_line) {
    return std::stoi(ready_line.substr(ready_line.find("ready ") + 6));
  }

  void expect_no_processes_left(const base::Stopwatch& since) const {
    while (!processes_with(mark_).empty() && since.seconds() < scaled_s(kDeadline)) usleep(5000);
    EXPECT_TRUE(processes_with(mark_).empty());
  }
};

/// Of ranks that are copies of the launcher, and of ranks that execute the program.
class Launch : public JobTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) environment_.set("SHARDWISE_TEST_EXECUTES", "1");
  }
  Environment environment_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, Launch, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "executed" : "copied"; });

TEST_P(Launch, exit_code_of_the_job) {
  struct Case {
    std::vector<std::string> codes;
    int expected;
  };
  for (const Case& c : {Case{{"0", "0", "0"}, 0}, Case{{"0", "4", "0"}, 1}, Case{{"2", "0", "0"}, 2},
                        Case{{"2", "2", "2"}, 2}, Case{{"0", "0", "1"}, 1}, Case{{"3", "3", "3"}, 3},
                        Case{{"0", "3", "0"}, 3}, Case{{"3", "1", "3"}, 1}}) {
    Program program(job(3, {"exit", c.codes[0], c.codes[1], c.codes[2]}));
    EXPECT_EQ(exit_code(program.wait()), c.expected) << c.codes[0] << c.codes[1] << c.codes[2];
  }
}

TEST_P(Launch, one_rank) {
  Program program(job(1, {"exit", "5"}));
  EXPECT_EQ(exit_code(program.wait()), 1);
  EXPECT_TRUE(
      std::regex_match(program.errors(),
                       std::regex("shardwise: rank 0 \\(pid \\d+\\) exited with code 5; the job is ended\n")))
      << program.errors();
}

// One of the ranks has printed it.
TEST_P(Launch, a_usage_error_of_all_ranks_is_not_printed_again) {
  Program program(job(3, {"exit", "2", "2", "2"}));
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_EQ(program.errors(), "");
}

TEST_P(Launch, fewer_than_one_rank_and_more_than_a_group_may_have_are_refused) {
  for (const int ranks : {0, 241}) {
    Program program(job(ranks, {"exit"}));
    EXPECT_EQ(exit_code(program.wait()), 2);
    EXPECT_EQ(program.errors(), fmt::format("launch: a job must have from 1 to 240 ranks; got {}\n", ranks));
  }
}

TEST_P(Launch, a_killed_rank_ends_the_job) {
  Program program(job(3, {"wait"}), marked());
  program.wait_for_lines("ready", 3);
  const auto line = program.wait_for_lines("[rank 1] ready", 1);
  EXPECT_EQ(processes_with(mark_).size(), 4u);  // otherwise finding none below would prove nothing
  const base::Stopwatch since;
  ASSERT_TRUE(send_to(pid_in(line[0]), SIGKILL));
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 1);
  expect_no_processes_left(since);
  const std::string expected = "shardwise: rank 1 (pid " + std::to_string(pid_in(line[0])) +
                               ") was killed by signal 9 (Killed); the job is ended\n";
  EXPECT_TRUE(program.errors().ends_with(expected)) << program.errors();
}

TEST_P(Launch, ranks_that_ignore_signals_are_killed) {
  Program program(job(2, {"stubborn"}), marked());
  program.wait_for_lines("ready", 2);
  const auto line = program.wait_for_lines("[rank 1] ready", 1);
  const base::Stopwatch since;
  ASSERT_TRUE(send_to(pid_in(line[0]), SIGABRT));
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 1);
  expect_no_processes_left(since);
  EXPECT_NE(program.errors().find("signal 6 (Aborted)"), std::string::npos) << program.errors();
}

// Only the first line of rank 2 is printed; rank 0 writes to standard error itself; the failed rank's lines
// are all printed.
TEST_P(Launch, survivors_print_one_line_and_the_cause_is_last) {
  Program program(job(3, {"report"}));
  EXPECT_EQ(exit_code(program.wait()), 1);
  const std::regex expected(
      "\\[rank 1\\] the cause\n\\[rank 1\\] and its hint\n"
      "(?=[^]*all_reduce #7 waited\nand a long tail\n)(?=[^]*\\[rank 2\\] all_reduce #7 waited\n)"
      "[^]*\nshardwise: rank 1 \\(pid \\d+\\) exited with code 1; the job is ended\n");
  EXPECT_TRUE(std::regex_match(program.errors(), expected)) << program.errors();
  EXPECT_EQ(program.errors().find("[rank 2] and a long tail"), std::string::npos);
}

class TerminatedLauncher : public JobTest,
                           public ::testing::WithParamInterface<std::tuple<int, const char*>> {};

TEST_P(TerminatedLauncher, leaves_no_processes) {
  const auto [signal, mode] = GetParam();
  Program program(job(3, {mode}), marked());
  program.wait_for_lines("ready", 3);
  EXPECT_EQ(processes_with(mark_).size(), 4u);
  const base::Stopwatch since;
  program.send(signal);
  const int status = program.wait_within(kDeadline);
  if (signal == SIGKILL) {
    EXPECT_TRUE(WIFSIGNALED(status));
  } else {
    EXPECT_EQ(exit_code(status), 128 + signal);
    EXPECT_NE(program.errors().find("shardwise: ended by signal " + std::to_string(signal)),
              std::string::npos)
        << program.errors();
  }
  expect_no_processes_left(since);
}

INSTANTIATE_TEST_SUITE_P(Signals, TerminatedLauncher,
                         ::testing::Combine(::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGKILL),
                                            ::testing::Values("wait", "stubborn")));

TEST_P(Launch, a_termination_signal_reaches_every_rank_once) {
  Program program(job(3, {"count"}), marked());
  program.wait_for_lines("ready", 3);
  program.send(SIGTERM);
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 143);
  program.wait_for_lines("requests 1", 3);
}

// After one signal the ranks would have a second to exit.
TEST_P(Launch, a_second_signal_kills_the_ranks_at_once) {
  Program program(job(2, {"stubborn"}), marked());
  program.wait_for_lines("ready", 2);
  const base::Stopwatch since;
  program.send(SIGINT);
  program.send(SIGTERM);
  EXPECT_EQ(exit_code(program.wait_within(0.8)), 130);  // of the first signal
  expect_no_processes_left(since);
}

// The terminal itself sends the signal to every process of the job.
TEST_P(Launch, ctrl_c_reaches_every_rank_once) {
  Program program(job(3, {"count"}), {.environment = {mark_}, .has_terminal = true});
  program.wait_for_lines("ready", 3);
  program.press('\x03');
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 130);
  program.wait_for_lines("requests 1", 3);
}

TEST_P(Launch, an_ignored_hangup_stays_ignored) {
  Program::Options nohup = marked();
  nohup.ignored_signals = {SIGHUP, SIGCHLD};
  Program program(job(2, {"wait"}), nohup);
  program.wait_for_lines("ready", 2);
  program.send(SIGHUP);
  program.send(SIGINT);
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 130);
}

// A signal of the process interrupts the busy thread, not the launching one.
TEST_P(Launch, another_thread_hides_no_exit) {
  Program program(job(2, {"exit", "0", "0"}), next_to("busy thread", /*runs=*/100));
  EXPECT_EQ(exit_code(program.wait(/*limit_s=*/60)), 0) << program.errors();
}

TEST_P(Launch, another_thread_hides_no_termination_signal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Program program(job(2, {"wait"}), next_to("busy thread"));
    program.wait_for_lines("ready", 2);
    const base::Stopwatch since;
    program.send(signal);
    EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 128 + signal);
    expect_no_processes_left(since);
  }
}

// Its waitpid returns the exit codes of the ranks.
TEST_P(Launch, another_thread_that_reaps_children_keeps_no_job_running) {
  Program program(job(2, {"exit", "0", "0"}), next_to("reaper", /*runs=*/10));
  const int code = exit_code(program.wait());
  const std::string errors = program.errors();
  const bool is_lost = errors.find("another part of this program took its exit code") != std::string::npos;
  EXPECT_TRUE(code == 0 || (code == 1 && is_lost)) << code << errors;
  EXPECT_EQ(errors.find("exited with code"), std::string::npos) << errors;
}

TEST_P(Launch, the_handler_of_exits_is_back_after_a_job) {
  Program program(job(2, {"exit", "0", "0"}), next_to("handler"));
  EXPECT_EQ(exit_code(program.wait()), 0);
}

TEST_P(Launch, a_signal_before_the_first_rank_ends_the_job) {
  Program program(job(2, {"wait"}), next_to("signal"));
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 143);
}

TEST_P(Launch, ranks_that_cannot_run_the_program_say_why) {
  environment_.set("SHARDWISE_TEST_EXECUTES", "1");
  Program program(job(2, {"exit", "0", "0"}), next_to("large environment"));
  EXPECT_EQ(exit_code(program.wait()), 1);
  const std::string reason = " cannot start; execve: Argument list too long\n";
  const std::string errors = program.errors();
  EXPECT_TRUE(errors.find("shardwise: rank 0" + reason) != std::string::npos ||
              errors.find("[rank 1] shardwise: rank 1" + reason) != std::string::npos)
      << errors;
}

// Rank 1 would print to the standard output of the job.
TEST_P(Launch, a_rank_without_dev_null_does_not_run) {
  Program program(job(2, {"talk"}), next_to("few descriptors"));
  EXPECT_EQ(exit_code(program.wait()), 1);
  EXPECT_NE(
      program.errors().find("[rank 1] shardwise: rank 1 cannot start; open /dev/null: Too many open files\n"),
      std::string::npos)
      << program.errors();
  EXPECT_EQ(program.output().find("output of 1"), std::string::npos);
}

/// Whatever the test itself has inherited.
TEST_F(JobTest, copies_have_the_descriptors_of_executed_ranks) {
  const auto counts = [](const Program::Options& options) {
    Program program(job(3, {"descriptors"}), options);
    EXPECT_EQ(exit_code(program.wait()), 0);
    std::multiset<std::string> lines;
    std::istringstream errors(program.errors());
    for (std::string line; std::getline(errors, line);) lines.insert(line);
    EXPECT_EQ(lines.size(), 3u) << program.errors();
    return lines;
  };
  EXPECT_EQ(counts({}), counts({.environment = {"SHARDWISE_TEST_EXECUTES=1"}}));
}

TEST_P(Launch, copies_are_named_by_their_rank) {
  Program program(job(2, {"wait"}), marked());
  program.wait_for_lines("ready", 2);
  const pid_t rank = pid_in(program.wait_for_lines("[rank 1] ready", 1)[0]);
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(rank) + "/comm"), name);
  EXPECT_EQ(name, GetParam() ? "exe" : "launch_job:1");
}

TEST_P(Launch, rank_zero_has_the_standard_streams) {
  Program program(job(3, {"talk"}));
  EXPECT_EQ(exit_code(program.wait()), 0);
  EXPECT_EQ(program.output(), "output of 0\n");
  for (const char* line :
       {"line of 0\nrest of 0", "[rank 1] line of 1\n", "[rank 1] rest of 1\n", "[rank 2] line of 2\n"}) {
    EXPECT_NE(program.errors().find(line), std::string::npos) << program.errors();
  }
}

TEST_P(Launch, a_flooding_rank_does_not_delay_a_signal) {
  Program program(job(3, {"flood"}), marked());
  program.wait_for_lines("ready", 3);
  const base::Stopwatch watch;
  program.send(SIGINT);
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 130);
  expect_no_processes_left(watch);
}

TEST_P(Launch, a_flooding_rank_does_not_hide_a_death) {
  Program program(job(3, {"flood"}), marked());
  program.wait_for_lines("ready", 3);
  const pid_t victim = pid_of_rank(2, mark_);  // rank 1 floods and lives on
  ASSERT_TRUE(send_to(victim, SIGKILL));
  EXPECT_EQ(exit_code(program.wait_within(kDeadline)), 1);
  const std::string death = "rank 2 (pid " + std::to_string(victim) + ") was killed by signal 9";
  EXPECT_NE(program.errors().find(death), std::string::npos);
}

TEST_P(Launch, a_line_without_end_is_printed_in_parts) {
  Program program(job(2, {"line"}));
  EXPECT_EQ(exit_code(program.wait()), 0);
  const std::string errors = program.errors();
  size_t longest = 0, begin = 0, count = 0;
  for (size_t end; (end = errors.find('\n', begin)) != std::string::npos; begin = end + 1) {
    longest = std::max(longest, end - begin);
    count += size_t(std::count(errors.begin() + ptrdiff_t(begin), errors.begin() + ptrdiff_t(end), 'x'));
  }
  EXPECT_EQ(count, size_t{32} << 20);
  EXPECT_LT(longest, size_t{256} << 10);
}

TEST_P(Launch, ranks_share_a_secret_that_no_other_job_has) {
  std::set<std::string> secrets;
  for (int i = 0; i < 2; ++i) {
    Program program(job(2, {"secret"}));
    EXPECT_EQ(exit_code(program.wait()), 0);
    const std::regex lines(
        "(?:secret ([0-9a-f]{32})\n\\[rank 1\\] secret \\1|\\[rank 1\\] secret ([0-9a-f]{32})\nsecret "
        "\\2)\n");
    std::smatch match;
    const std::string errors = program.errors();
    ASSERT_TRUE(std::regex_match(errors, match, lines)) << errors;
    secrets.insert(match[1].matched ? match[1] : match[2]);
  }
  EXPECT_EQ(secrets.size(), 2);
}

TEST_P(Launch, ranks_get_rank_world_size_and_job) {
  Program program(job(2, {"input"}), {.input = "four"});
  EXPECT_EQ(exit_code(program.wait()), 0);
  const std::regex expected(
      "rank 0 of 2 in (launch/[0-9a-f/]+) read 4\n\\[rank 1\\] rank 1 of 2 in \\1 read 0\n|"
      "\\[rank 1\\] rank 1 of 2 in (launch/[0-9a-f/]+) read 0\nrank 0 of 2 in \\2 read 4\n");
  EXPECT_TRUE(std::regex_match(program.errors(), expected)) << program.errors();
}

}  // namespace
}  // namespace shardwise::testing::launch_test
