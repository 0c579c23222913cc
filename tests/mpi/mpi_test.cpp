// Ranks over MPI: the tests of ranks/ on 2, 3 and 4 ranks, on one node, on simulated nodes and over sockets;
// jobs with a killed or stopped rank; multi-node training.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "shardwise/base/clock.h"
#include "tests/mpi/mpirun.h"
#include "tests/support/deadline.h"
#include "tests/support/error_text.h"
#include "tests/support/waited.h"
#include "tests/train/runs.h"

namespace shardwise::testing::mpi_test {
namespace {

using test::contains;

constexpr double kDeadline =
    10;  // seconds from a fault to the exit of all processes: the timeout of 2 s, and mpirun's own

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
  /// Runs the ranks' tests that match `filter` and checks that each rank's last line reports success.
  void expect_passed(const std::string& filter, bool exits_cleanly) {
    const Setting& setting = GetParam();
    Program program(mpirun(setting.ranks, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=" + filter}),
                    environment(setting.environment));
    const int code = exit_code(program.wait(300));
    EXPECT_EQ(lines_with(program.errors(), ": passed"), setting.ranks)
        << program.errors() << program.output();
    EXPECT_EQ(code == 0, exits_cleanly) << code << program.errors();
  }
};

// With the hierarchical topology ranks of one node share memory, which tests/comm tests.
TEST_P(Ranks, Collectives) {
  expect_passed(GetParam().environment.empty() ? "*Collectives.*/flat:FlatBits.*" : "*Collectives.*:Flat*",
                /*exits_cleanly=*/true);
}
TEST_P(Ranks, C10dApi) {
  expect_passed("C10dApi.*", /*exits_cleanly=*/true);
}
TEST_P(Ranks, Failures) {
  expect_passed("*Failures*", /*exits_cleanly=*/false);
}

INSTANTIATE_TEST_SUITE_P(
    On, Ranks,
    ::testing::Values(Setting{"two", 2, {}}, Setting{"three", 3, {}}, Setting{"four", 4, {}},
                      Setting{"four_on_two_nodes", 4, {"SHARDWISE_NODES=2"}},
                      Setting{"three_on_two_nodes", 3, {"SHARDWISE_NODES=2"}},
                      Setting{"two_over_sockets", 2, {"SHARDWISE_NODES=2", "OMPI_MCA_btl=self,tcp"}}),
    [](const auto& setting) { return std::string(setting.param.name); });

// With six ranks on three nodes, four ranks are on two nodes: a hierarchical group next to one in shared
// memory.
using Subgroups = Ranks;
TEST_P(Subgroups, DoNotMix) {
  expect_passed("*Subgroups.*", /*exits_cleanly=*/true);
}

INSTANTIATE_TEST_SUITE_P(On, Subgroups,
                         ::testing::Values(Setting{"three_on_two_nodes", 3, {"SHARDWISE_NODES=2"}},
                                           Setting{"four", 4, {}},
                                           Setting{"four_on_two_nodes", 4, {"SHARDWISE_NODES=2"}},
                                           Setting{"six_on_three_nodes", 6, {"SHARDWISE_NODES=3"}}),
                         [](const auto& setting) { return std::string(setting.param.name); });

class BytesBetweenNodes : public ::testing::TestWithParam<const char*> {};

TEST_P(BytesBetweenNodes, MatchTheFormulas) {
  Program program(mpirun(6, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=*BytesBetweenNodes.*"}),
                  environment({GetParam()}));
  EXPECT_EQ(exit_code(program.wait(60)), 0);
  EXPECT_EQ(lines_with(program.errors(), ": passed"), 6) << program.errors() << program.output();
}

INSTANTIATE_TEST_SUITE_P(On, BytesBetweenNodes, ::testing::Values("SHARDWISE_NODES=2", "SHARDWISE_NODES=3"),
                         [](const auto& nodes) { return std::string(nodes.param).substr(16) + "_nodes"; });

TEST(Rendezvous, LateRanksAndMismatchedGroupsAreNamed) {
  Program program(mpirun(3, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=Rendezvous.*:LateRanks.*"}),
                  environment());
  program.wait(60);
  EXPECT_EQ(lines_with(program.errors(), ": passed"), 3) << program.errors() << program.output();
}

/// Tests of ranks/lifetime.cpp, each in a job of its own.
class Lifetime : public ::testing::Test {
 protected:
  static void expect_passed(const std::string& test, bool exits_cleanly) {
    Program program(mpirun(2, {MPI_RANKS, "--gtest_brief=1", "--gtest_filter=Lifetime." + test}),
                    environment());
    const int code = exit_code(program.wait(60));
    EXPECT_EQ(lines_with(program.errors(), ": passed"), 2) << program.errors() << program.output();
    EXPECT_EQ(code == 0, exits_cleanly) << code << program.errors();
  }
};

TEST_F(Lifetime, EveryCallAfterAFailedStartThrowsItsError) {
  expect_passed("EveryCallAfterAFailedStartThrowsItsError", /*exits_cleanly=*/false);
}
TEST_F(Lifetime, AProgramThatInitializesMpiForSerializedCallsIsRefused) {
  expect_passed("AProgramThatInitializesMpiForSerializedCallsIsRefused", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, AForkExitsNormally) {
  expect_passed("AForkExitsNormally", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, GroupsAreCreatedByOneThreadAtATime) {
  expect_passed("GroupsAreCreatedByOneThreadAtATime", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, ARankThatStopsWhileAGroupIsCreatedIsAnError) {
  expect_passed("ARankThatStopsWhileAGroupIsCreatedIsAnError", /*exits_cleanly=*/false);
}
TEST_F(Lifetime, MessageBytesMustFitAnInt) {
  expect_passed("MessageBytesMustFitAnInt", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, ShutdownDropsUnreceivedMessages) {
  expect_passed("ShutdownDropsUnreceivedMessages", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, ShutdownWaitsForABusyRank) {
  expect_passed("ShutdownWaitsForABusyRank", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, ShutdownTimesOutIfARankNeverCallsIt) {
  expect_passed("ShutdownTimesOutIfARankNeverCallsIt", /*exits_cleanly=*/false);
}
TEST_F(Lifetime, SecondThreadsAndForksAreRefused) {
  expect_passed("SecondThreadsAndForksAreRefused", /*exits_cleanly=*/true);
}
TEST_F(Lifetime, BackgroundTransfersThatCannotProgressAreReported) {
  expect_passed("BackgroundTransfersThatCannotProgressAreReported", /*exits_cleanly=*/false);
}
TEST_F(Lifetime, AfterShutdownEveryCallThrows) {
  expect_passed("AfterShutdownEveryCallThrows", /*exits_cleanly=*/true);
}

// Rank 0 returns 0 from main; rank 1 never does.
TEST(RankThatNeverFinalizes, EndsTheJobAfterTwoTimeouts) {
  const std::string mark = "SHARDWISE_TEST_MARK=mpi-finalize-" + std::to_string(getpid());
  Program program(mpirun(2, {MPI_RANKS, "never_finalize"}), environment({mark}));
  ASSERT_EQ(program.wait_for_lines("ready", 2).size(), 2u);
  EXPECT_NE(exit_code(program.wait_within(kDeadline)), 0);
  const std::string errors = program.errors();
  EXPECT_PRED2(contains, errors,
               "error: shutdown #0: timed out waiting for all ranks to shut MPI down; rank 0 waited ");
  expect_waited_for_timeout(errors, /*rank=*/0, /*timeout_s=*/6);
  EXPECT_TRUE(processes_with(mark).empty());
}

struct Fault {
  int signal;
  const char* topology;
};

class FaultyRank : public ::testing::TestWithParam<Fault> {};

// If a rank is killed, mpirun ends the job; if one is stopped, the first rank that times out does.
TEST_P(FaultyRank, EndsTheJob) {
  const std::string mark = "SHARDWISE_TEST_MARK=mpi-" + std::to_string(getpid());
  const Program::Options options = environment({"SHARDWISE_NODES=2", mark});
  Program program(mpirun(4, {MPI_RANKS, "endless", GetParam().topology}), options);
  const std::vector<std::string> ready = program.wait_for_lines("ready", 4);
  ASSERT_EQ(ready.size(), 4u);
  pid_t second = 0;
  for (const std::string& line : ready) {
    if (contains(line, "rank 1")) second = std::stoi(line.substr(line.find("ready ") + 6));
  }
  ASSERT_TRUE(send_to(second, GetParam().signal));
  const base::Stopwatch since;
  EXPECT_NE(exit_code(program.wait_within(kDeadline)), 0);
  if (GetParam().signal == SIGSTOP) {
    EXPECT_PRED2(contains, program.errors(), "rank 1");
    EXPECT_GE(lines_with(program.errors(), "all_reduce #"), 1) << program.errors();
  }
  while (!processes_with(mark).empty() && since.seconds() < scaled_s(kDeadline)) usleep(5000);
  EXPECT_TRUE(processes_with(mark).empty());
}

INSTANTIATE_TEST_SUITE_P(Is, FaultyRank,
                         ::testing::Values(Fault{SIGKILL, "flat"}, Fault{SIGKILL, "hierarchical"},
                                           Fault{SIGSTOP, "flat"}, Fault{SIGSTOP, "hierarchical"}),
                         [](const auto& fault) {
                           return std::string(fault.param.signal == SIGKILL ? "killed_" : "stopped_") +
                                  fault.param.topology;
                         });

/// Returns the records of the steps in a log.
std::vector<nlohmann::json> steps_in(const std::string& log) {
  std::vector<nlohmann::json> steps;
  std::istringstream lines(test::contents(log));
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("step")) steps.push_back(std::move(record));
  }
  return steps;
}

std::vector<double> losses_in(const std::string& log) {
  std::vector<double> losses;
  for (const nlohmann::json& step : steps_in(log)) losses.push_back(step["loss"]);
  return losses;
}

class MultiNodeTraining : public ::testing::Test {
 protected:
  MultiNodeTraining() { small_options(scratch_); }
  std::vector<std::string> train(int tp, const std::string& log, const std::vector<std::string>& more) const {
    std::vector<std::string> options = {"--log", log, "--tp", std::to_string(tp)};
    options.insert(options.end(), more.begin(), more.end());
    return training_command(scratch_, 4, options);
  }
  static void expect_success(Program& program) {
    EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
  }
  void expect_losses_of_one_node(int ranks, const std::vector<std::string>& more) {
    Program one_node(train(ranks, scratch_ / "one_node", more), environment());
    expect_success(one_node);
    Program multi_node(mpirun(ranks, train(ranks, scratch_ / "multi_node", more)),
                       environment({"SHARDWISE_NODES=2"}));
    expect_success(multi_node);
    EXPECT_EQ(losses_in(scratch_ / "one_node").size(), 4u);
    expect_close(losses_in(scratch_ / "multi_node"), losses_in(scratch_ / "one_node"));
  }
  Scratch scratch_;
};

TEST_F(MultiNodeTraining, MatchesTheLossesOfOneNode) {
  expect_losses_of_one_node(4, {});
}
TEST_F(MultiNodeTraining, MatchesTheLossesOfOneNodeWithoutSequenceParallelism) {
  expect_losses_of_one_node(4, {"--no-sequence-parallel"});
}
TEST_F(MultiNodeTraining, MatchesTheLossesOfOneNodeOnUnevenNodes) {
  expect_losses_of_one_node(3, {});
}

TEST_F(MultiNodeTraining, ReplicasAndStagesMatchOneNodeAndSendThePlannedBytes) {
  struct Run {
    int ranks, tp;
    std::vector<std::string> flags;
  };
  for (const Run& run : {Run{4, 2, {"--dp", "2"}},
                         {3, 1, {"--dp", "3"}},  // their group has two nodes
                         {3, 1, {"--dp", "3", "--zero", "2"}},
                         {4, 2, {"--pp", "2"}}}) {
    std::vector<std::string> more = {"--grad-accum", "4", "--json", "--dtype", "fp64"};
    more.insert(more.end(), run.flags.begin(), run.flags.end());
    SCOPED_TRACE(::testing::PrintToString(more));
    Program one_node(train(run.tp, scratch_ / "one_node", more), environment());
    expect_success(one_node);
    Program multi_node(mpirun(run.ranks, train(run.tp, scratch_ / "multi_node", more)),
                       environment({"SHARDWISE_NODES=2"}));
    expect_success(multi_node);
    const bool has_replicas = run.flags[0] == "--dp";
    EXPECT_EQ(lines_with(multi_node.errors(), "each replica has a copy of the weights"),
              has_replicas ? 1 : 0);
    expect_close(losses_in(scratch_ / "multi_node"), losses_in(scratch_ / "one_node"), 1e-10);
    const nlohmann::json printed = nlohmann::json::parse(multi_node.output());
    for (const nlohmann::json& rank : printed.at("ranks"))
      EXPECT_EQ(rank.at("comm_bytes"), rank.at("expected_comm_bytes"));
  }
}

TEST_F(MultiNodeTraining, ReportsThatNothingOverlaps) {
  Program program(mpirun(2, train(2, scratch_ / "log", {})), environment({"SHARDWISE_NODES=2"}));
  expect_success(program);
  EXPECT_EQ(lines_with(program.errors(), "train: overlap off: collectives over MPI run inside their calls"),
            1)
      << program.errors();
  for (const nlohmann::json& step : steps_in(scratch_ / "log")) EXPECT_EQ(step.at("overlap"), "off");
  Program refused(mpirun(2, train(2, scratch_ / "log", {"--overlap", "on"})),
                  environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(refused.wait(60)), 2);
  EXPECT_EQ(lines_with(refused.errors(), "train: --overlap on needs ranks that share memory"), 1)
      << refused.errors();
}

TEST_F(MultiNodeTraining, WhatIsNotCountedIsAbsent) {
  const std::string report = scratch_ / "report.json";
  Program program(mpirun(2, train(2, scratch_ / "log", {"--report", report, "--json"})),
                  environment({"SHARDWISE_NODES=2"}));
  expect_success(program);
  for (const nlohmann::json& step : steps_in(scratch_ / "log")) {
    EXPECT_GT(step.at("comm_bytes"), 0);
    EXPECT_FALSE(step.contains("wait_ms") || step.contains("copied_bytes")) << step;
  }
  EXPECT_EQ(lines_with(program.errors(), "train: peak memory is not planned for ranks over MPI"), 1)
      << program.errors();
  for (const std::string& text : {test::contents(scratch_ / "log"), program.output()})
    EXPECT_FALSE(contains(text, "expected_memory")) << text;
  const nlohmann::json figures = nlohmann::json::parse(test::contents(report));
  for (const nlohmann::json& step : figures.at("steps")) EXPECT_FALSE(step.contains("wait_ms")) << step;
  for (const nlohmann::json& rank : figures.at("ranks")) {
    EXPECT_FALSE(rank.contains("copied_bytes") || rank.at("memory").contains("shared memory")) << rank;
  }
  const nlohmann::json printed = nlohmann::json::parse(program.output());
  for (const nlohmann::json& rank : printed.at("ranks")) {
    EXPECT_FALSE(rank.contains("copied_bytes") || rank.contains("expected_peak_memory_bytes")) << rank;
  }
  EXPECT_EQ(lines_with(program.errors(), "                -  "), 2) << program.errors();  // copied
  Program shown({SHARDWISE_PROGRAM, "report", report});
  expect_success(shown);
  // The last columns of both ranks are waiting and copied bytes.
  const std::regex row(R"(report\.json +[01] .* ([^ \n]+)\n)");
  const std::string text = shown.output();
  std::vector<std::string> last_cells;
  for (std::sregex_iterator at(text.begin(), text.end(), row), end; at != end; ++at)
    last_cells.push_back(at->str(1));
  EXPECT_EQ(last_cells, std::vector<std::string>(4, "-")) << text;
}

TEST(MultiNodeBench, RefusesToTimeOverlapWhereNothingOverlaps) {
  Program program(mpirun(2, {SHARDWISE_PROGRAM, "bench", "overlap", "--tp", "2", "--rows", "5", "--hidden",
                             "6", "--ffn", "7", "--seconds", "0.01"}),
                  environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(program.wait(60)), 2);
  EXPECT_EQ(lines_with(program.errors(), "bench overlap: needs ranks that share memory"), 1)
      << program.errors();
  EXPECT_EQ(program.output(), "");
}

TEST(MultiNodeBench, RefusesToTuneForSeveralNodes) {
  Program program(mpirun(2, {SHARDWISE_PROGRAM, "bench", "comm", "--tune", "--tp", "2"}),
                  environment({"SHARDWISE_NODES=2"}));
  EXPECT_NE(exit_code(program.wait(60)), 0);
  EXPECT_EQ(lines_with(program.errors(), "--tune needs ranks of one node; got several nodes"), 1)
      << program.errors();
  EXPECT_EQ(program.output(), "");
}

using TrainUnderMpirun = MultiNodeTraining;

// With OMPI_MCA_pml=none MPI cannot start, so this shows that ranks of one node do not use it.
TEST_F(TrainUnderMpirun, OnOneNodeItUsesNoMpiAndGivesTheSameLosses) {
  Program alone(train(2, scratch_ / "alone", {}), environment());
  expect_success(alone);
  Program program(mpirun(2, train(2, scratch_ / "mpirun", {})), environment({"OMPI_MCA_pml=none"}));
  expect_success(program);
  EXPECT_EQ(losses_in(scratch_ / "alone").size(), 4u);
  EXPECT_EQ(losses_in(scratch_ / "mpirun"), losses_in(scratch_ / "alone"));
}

// Rank 0 cannot write its log; without an abort the other ranks would wait for the default timeout of
// minutes.
TEST_F(MultiNodeTraining, AnErrorOfOneRankIsPrintedAndEndsTheJob) {
  Program program(mpirun(4, train(4, "/dev/full", {})), environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(program.wait(60)), 1);
  EXPECT_PRED2(contains, program.errors(), "shardwise: rank 0: train: --log /dev/full cannot be written");
}

TEST_F(MultiNodeTraining, WithoutMpirunIsRefused) {
  Program program(train(4, scratch_ / "log", {}), environment({"SHARDWISE_NODES=2"}));
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_EQ(program.errors(),
            "shardwise: launch: multi-node groups need ranks started by Open MPI's mpirun; got 4 ranks of "
            "group world "
            "on 2 nodes (SHARDWISE_NODES); unset it, or run mpirun with -n 4\n");
}

}  // namespace
}  // namespace shardwise::testing::mpi_test
