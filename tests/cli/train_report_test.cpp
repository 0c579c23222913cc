// The report of a training run, measured next to planned: the JSON document, and a page of it.
#include <sys/stat.h>

#include <regex>

#include "tests/cli/chain.h"
#include "tests/cli/train_program.h"
#include "tests/support/error_text.h"

namespace shardwise::cli::train_report_test {
namespace {

using namespace shardwise::testing;
using test::contains;

/// Returns what `shardwise report` has put into its page for the script.
json data_of(const std::string& page) {
  std::smatch data;
  EXPECT_TRUE(std::regex_search(page, data, std::regex("<script id=\"data\"[^>]*>([^<]*)</script>")));
  return json::parse(data.str(1));
}

/// Returns the values of a field of all elements.
json column(const json& list, const char* name) {
  json values = json::array();
  for (const json& one : list) values.push_back(one.at(name));
  return values;
}

class TrainReport : public TrainProgram {};

TEST_F(TrainReport, WritesAllMeasurementsAndAPage) {
  const std::string file = scratch_ / "report.json";
  Program program(argv({"--tp", "2", "--report", file, "--val-fraction", "0.2"}), kOneThread);
  expect_success(program);
  const json figures = json::parse(test::contents(file));
  ASSERT_EQ(figures["steps"].size(), 4u);
  for (const json& step : figures["steps"]) {
    for (const int rank : {0, 1}) {
      EXPECT_GE(step["wait_ms"][rank], 0);
      EXPECT_GE(step["comm_ms"][rank], step["wait_ms"][rank]);
      EXPECT_GE(step["step_ms"][rank], step["comm_ms"][rank]);
    }
  }
  for (const json& rank : figures["ranks"]) {
    EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
    for (const char* exact : {"weights", "main gradients", "optimizer"}) {
      EXPECT_EQ(rank["memory"][exact], rank["expected_memory"][exact]) << exact;
    }
    EXPECT_GT(rank["memory"]["activations"], 0);
    EXPECT_GT(rank["memory"]["shared memory"], 0);
  }
  const json& embedding = figures["parameters"][0];
  EXPECT_EQ(embedding["shape"], (json{259, 24}));
  EXPECT_EQ(embedding["rank_shapes"], (json{{130, 24}, {129, 24}}));
  const std::string page = scratch_ / "report.html";
  Program report({SHARDWISE_PROGRAM, "report", file, "-o", page});
  expect_success(report);
  EXPECT_EQ(report.output(), "");
  const json shown = data_of(test::contents(page))["runs"][0];
  EXPECT_EQ(shown["steps"]["loss"], column(figures["steps"], "loss"));
  EXPECT_EQ(column(shown["ranks"], "sent_bytes"), column(figures["ranks"], "comm_bytes"));
  EXPECT_EQ(shown["shapes"][0]["rank_shapes"], embedding["rank_shapes"]);
  EXPECT_FALSE(contains(test::contents(page), "://")) << "the page must need no network";
}

// The report's name becomes a directory while the run goes on, so the report's final rename fails.
TEST_F(TrainReport, AFailedReportKeepsTheOtherOutput) {
  const std::string save = scratch_ / "saved", report = scratch_ / "report.json";
  Program program(argv({"--json", "--steps", "100", "--save", save, "--save-every", "1", "--report", report}),
                  kOneThread);
  wait_for_checkpoint(save, program);
  ASSERT_EQ(::mkdir(report.c_str(), 0700), 0);
  const int status = program.wait(60);
  EXPECT_EQ(exit_code(status), 1) << program.errors();
  EXPECT_PRED2(contains, program.errors(), "rename to " + report);
  EXPECT_PRED2(contains, program.errors(), "100 steps in");
  EXPECT_EQ(json::parse(program.output())["step"], 100);
}

// The names of files are bytes, which JSON must replace.
TEST_F(TrainReport, NamesThatAreNotUtf8FailNothing) {
  const std::string save = scratch_ / "saved\xff", file = scratch_ / "report.json";
  Program program(argv({"--json", "--save", save, "--report", file}), kOneThread);
  expect_success(program);
  EXPECT_EQ(json::parse(program.output())["saved"], scratch_ / "saved\uFFFD/step-4");
  EXPECT_EQ(json::parse(test::contents(file))["steps"].size(), 4U);
}

TEST_F(TrainReport, FreezingByNameMatchesThePlan) {
  for (const char* block : {"model.layers.0.*", "model.layers.*"}) {
    SCOPED_TRACE(block);
    const std::string file = scratch_ / "report.json";
    Program program(argv({"--tp", "2", "--freeze", "model.embed_tokens.*", block, "--report", file}),
                    kOneThread);
    expect_success(program);
    for (const json& rank : ranks_in(test::contents(file))) {
      EXPECT_GT(rank["comm_bytes"], 0);
      EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
      for (const char* exact : {"weights", "main gradients", "optimizer"})
        EXPECT_EQ(rank["memory"][exact], rank["expected_memory"][exact]) << exact;
    }
  }
}

// Every backend that a command can start reduces inside its calls.
TEST_F(TrainReport, RefusesSplitBatchesInSharedMemory) {
  Program program(argv({"--tp", "2", "--split-batch", "--no-sequence-parallel"}), kOneThread);
  EXPECT_EQ(exit_code(program.wait(60)), 2);
  EXPECT_PRED2(contains, program.errors(), "--split-batch needs a backend that progresses asynchronously");
  Program help({SHARDWISE_PROGRAM, "train", "--help"}, kOneThread);
  expect_success(help);
  const std::string one_line = std::regex_replace(help.output(), std::regex("\\s+"), " ");
  EXPECT_PRED2(contains, one_line, "refused in shared memory and over MPI, where it hides nothing");
  Program with_sp(argv({"--tp", "2", "--split-batch"}), kOneThread);
  EXPECT_EQ(exit_code(with_sp.wait(60)), 2);
  EXPECT_PRED2(contains, with_sp.errors(), "--split-batch needs TP without sequence parallelism");
}

}  // namespace
}  // namespace shardwise::cli::train_report_test
