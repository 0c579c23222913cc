// Ranks joined by MPI: the tests of ranks/ on 2, 3 and 4 ranks, on one host, on pretended ones, over sockets;
// what becomes of a job whose rank dies; training across hosts.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/base/clock.h"
#include "tests/mpi/mpirun.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::testing::mpi_test {
namespace {

using test::contains;

constexpr double kDeadline =
    10;  // seconds from a fault to the end of all processes: 2 of timeout, and mpirun's

int lines_with(const std::string& text, const std::string& part) {
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) count += contains(line, part);
  return count;
}

struct Setting {
  const char* name;
  int ranks;
  std::vector<std::string> environment;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

class Ranks : public ::testing::TestWithParam<Setting> {
 protected:
  /// Runs those of the ranks' tests; each rank says in the end that all have passed.
  void expect_passed(const std::string& filter, bool ends_in_good_order) {
    const Setting& setting = GetParam();
    Program program(mpirun(setting.ranks, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=" + filter}),
                    environment(setting.environment));
    const int code = exit_code(program.wait(300));
    EXPECT_EQ(lines_with(program.errors(), ": passed"), setting.ranks)
        << program.errors() << program.output();
    EXPECT_EQ(code == 0, ends_in_good_order) << code << program.errors();
  }
};

// By host, ranks of one host share memory, which tests/comm goes through.
TEST_P(Ranks, Collectives) {
  expect_passed(GetParam().environment.empty() ? "*Collectives.*/flat:FlatBits.*" : "*Collectives.*:Flat*",
                /*ends_in_good_order=*/true);
}
TEST_P(Ranks, Forms) {
  expect_passed("Forms.*", /*ends_in_good_order=*/true);
}
TEST_P(Ranks, Disorder) {
  expect_passed("*Disorder*", /*ends_in_good_order=*/false);
}

INSTANTIATE_TEST_SUITE_P(
    On, Ranks,
    ::testing::Values(Setting{"two", 2, {}}, Setting{"three", 3, {}}, Setting{"four", 4, {}},
                      Setting{"four_on_two_hosts", 4, {"SHARDWISE_NODES=2"}},
                      Setting{"three_on_two_hosts", 3, {"SHARDWISE_NODES=2"}},
                      Setting{"two_over_sockets", 2, {"SHARDWISE_NODES=2", "OMPI_MCA_btl=self,tcp"}}),
    [](const auto& setting) { return std::string(setting.param.name); });

// Of six ranks on three hosts four are two on two hosts: a group by host beside one in shared memory.
using SubGroups = Ranks;
TEST_P(SubGroups, DoNotMix) {
  expect_passed("*SubGroups.*", /*ends_in_good_order=*/true);
}

INSTANTIATE_TEST_SUITE_P(On, SubGroups,
                         ::testing::Values(Setting{"three_on_two_hosts", 3, {"SHARDWISE_NODES=2"}},
                                           Setting{"four", 4, {}},
                                           Setting{"four_on_two_hosts", 4, {"SHARDWISE_NODES=2"}},
                                           Setting{"six_on_three_hosts", 6, {"SHARDWISE_NODES=3"}}),
                         [](const auto& setting) { return std::string(setting.param.name); });

class BytesBetweenHosts : public ::testing::TestWithParam<const char*> {};

TEST_P(BytesBetweenHosts, AreThoseOfTheFormulas) {
  Program program(mpirun(6, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=*BytesBetweenHosts.*"}),
                  environment({GetParam()}));
  EXPECT_EQ(exit_code(program.wait(60)), 0);
  EXPECT_EQ(lines_with(program.errors(), ": passed"), 6) << program.errors() << program.output();
}

INSTANTIATE_TEST_SUITE_P(Of, BytesBetweenHosts, ::testing::Values("SHARDWISE_NODES=2", "SHARDWISE_NODES=3"),
                         [](const auto& hosts) { return std::string(hosts.param).substr(16) + "_hosts"; });

TEST(Meeting, RanksThatComeLateOrToOtherGroupsAreNamed) {
  Program program(mpirun(3, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=Meeting.*:LateRanks.*"}),
                  environment());
  program.wait(60);
  EXPECT_EQ(lines_with(program.errors(), ": passed"), 3) << program.errors() << program.output();
}

/// Tests of ranks/lifetime.cpp, each in a job of its own.
class Lifetime : public ::testing::Test {
 protected:
  static void expect_passed(const std::string& test, bool ends_in_good_order) {
    Program program(mpirun(2, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=Lifetime." + test}),
                    environment());
    const int code = exit_code(program.wait(60));
    EXPECT_EQ(lines_with(program.errors(), ": passed"), 2) << program.errors() << program.output();
    EXPECT_EQ(code == 0, ends_in_good_order) << code << program.errors();
  }
};

TEST_F(Lifetime, AFailedStartStaysTheReason) {
  expect_passed("AFailedStartStaysTheReason", /*ends_in_good_order=*/false);
}
TEST_F(Lifetime, AProgramThatStartsMpiForOneThreadAtATimeIsRefused) {
  expect_passed("AProgramThatStartsMpiForOneThreadAtATimeIsRefused", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, AForkEndsByItself) {
  expect_passed("AForkEndsByItself", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, GroupsAreMadeByOneThreadAtATime) {
  expect_passed("GroupsAreMadeByOneThreadAtATime", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, MessagesAreOfAtLeastOneByteAndOfWhatMpiCounts) {
  expect_passed("MessagesAreOfAtLeastOneByteAndOfWhatMpiCounts", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, AMessageThatNobodyTakesIsGivenUpInTheEnd) {
  expect_passed("AMessageThatNobodyTakesIsGivenUpInTheEnd", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, TheEndWaitsForABusyRank) {
  expect_passed("TheEndWaitsForABusyRank", /*ends_in_good_order=*/true);
}
TEST_F(Lifetime, AfterTheEndAGroupHasErrorsOnly) {
  expect_passed("AfterTheEndAGroupHasErrorsOnly", /*ends_in_good_order=*/true);
}

struct Fault {
  int signal;
  const char* layout;
};

class FaultyRank : public ::testing::TestWithParam<Fault> {};

// A killed rank's job is ended by mpirun, a stopped one's by the first rank that has waited for too long.
TEST_P(FaultyRank, EndsTheJob) {
  const std::string mark = "SHARDWISE_TEST_MARK=mpi-" + std::to_string(getpid());
  const Program::Options options = environment({"SHARDWISE_NODES=2", mark});
  Program program(mpirun(4, {MPI_RANKS, "endless", GetParam().layout}), options);
  const std::vector<std::string> ready = program.wait_for_lines("ready", 4);
  ASSERT_EQ(ready.size(), 4u);
  pid_t second = 0;
  for (const std::string& line : ready) {
    if (contains(line, "rank 1")) second = std::stoi(line.substr(line.find("ready ") + 6));
  }
  ASSERT_TRUE(send_to(second, GetParam().signal));
  const base::Stopwatch since;
  EXPECT_NE(exit_code(program.wait(kDeadline)), 0);
  if (GetParam().signal == SIGSTOP) {
    EXPECT_PRED2(contains, program.errors(), "rank 1");
    EXPECT_GE(lines_with(program.errors(), "all_reduce #"), 1) << program.errors();
  }
  while (!processes_with(mark).empty() && since.seconds() < kDeadline) usleep(5000);
  EXPECT_TRUE(processes_with(mark).empty());
}

INSTANTIATE_TEST_SUITE_P(Is, FaultyRank,
                         ::testing::Values(Fault{SIGKILL, "flat"}, Fault{SIGKILL, "by_host"},
                                           Fault{SIGSTOP, "flat"}, Fault{SIGSTOP, "by_host"}),
                         [](const auto& fault) {
                           return std::string(fault.param.signal == SIGKILL ? "killed_" : "stopped_") +
                                  fault.param.layout;
                         });

std::vector<double> losses_in(const std::string& log) {
  std::vector<double> losses;
  std::istringstream lines(test::contents(log));
  for (std::string line; std::getline(lines, line);) losses.push_back(nlohmann::json::parse(line)["loss"]);
  return losses;
}

class TrainAcrossHosts : public ::testing::Test {
 protected:
  TrainAcrossHosts() { small_options(scratch_); }
  std::vector<std::string> train(int tp, const std::string& log, const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {SHARDWISE_PROGRAM,
                                     "train",
                                     "--text",
                                     scratch_ / "text",
                                     "--model-config",
                                     scratch_ / "config.json",
                                     "--seq-len",
                                     "11",
                                     "--batch-size",
                                     "2",
                                     "--steps",
                                     "4",
                                     "--log",
                                     log,
                                     "--tp",
                                     std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  static void expect_success(Program& program) {
    EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
  }
  void expect_losses_of_one_host(int ranks, const std::vector<std::string>& more) {
    Program here(train(ranks, scratch_ / "here", more), environment());
    expect_success(here);
    Program apart(mpirun(ranks, train(ranks, scratch_ / "apart", more)), environment({"SHARDWISE_NODES=2"}));
    expect_success(apart);
    EXPECT_EQ(losses_in(scratch_ / "here").size(), 4u);
    expect_close(losses_in(scratch_ / "apart"), losses_in(scratch_ / "here"));
  }
  Scratch scratch_;
};

TEST_F(TrainAcrossHosts, GivesTheLossesOfOneHost) {
  expect_losses_of_one_host(4, {});
}
TEST_F(TrainAcrossHosts, GivesTheLossesOfOneHostWithoutSequenceParallelism) {
  expect_losses_of_one_host(4, {"--no-sequence-parallel"});
}
TEST_F(TrainAcrossHosts, GivesTheLossesOfOneHostOnUnevenHosts) {
  expect_losses_of_one_host(3, {});
}

using TrainUnderMpirun = TrainAcrossHosts;

// MPI could not start without a way to send messages: the ranks of one host are joined by shared memory.
TEST_F(TrainUnderMpirun, OnOneHostItTakesNoMpiAndGivesTheSameLosses) {
  Program alone(train(2, scratch_ / "alone", {}), environment());
  expect_success(alone);
  Program program(mpirun(2, train(2, scratch_ / "mpirun", {})), environment({"OMPI_MCA_pml=none"}));
  expect_success(program);
  EXPECT_EQ(losses_in(scratch_ / "alone").size(), 4u);
  EXPECT_EQ(losses_in(scratch_ / "mpirun"), losses_in(scratch_ / "alone"));
}

// Rank 0 cannot write what it alone writes; the others wait for it, and would for the default timeout,
// minutes.
TEST_F(TrainAcrossHosts, AnErrorOfOneRankIsToldAndEndsTheJob) {
  Program program(mpirun(4, train(4, "/dev/full", {})), environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(program.wait(60)), 1);
  EXPECT_PRED2(contains, program.errors(), "shardwise: rank 0: train: --log /dev/full cannot be written");
}

TEST_F(TrainAcrossHosts, WithoutMpirunIsRefused) {
  Program program(train(4, scratch_ / "log", {}), environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_EQ(program.errors(),
            "shardwise: launch: ranks of several hosts are started by Open MPI's mpirun; got 4 ranks of "
            "group world "
            "on 2 hosts (SHARDWISE_NODES); unset it, or run mpirun with -n 4\n");
}

}  // namespace
}  // namespace shardwise::testing::mpi_test
