// Generation on two simulated nodes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/mpi/mpirun.h"
#include "tests/train/runs.h"

namespace shardwise::testing::mpi_generation_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

const Program::Options kTwoNodes = environment({"SHARDWISE_NODES=2"});

class MultiNodeGeneration : public ::testing::Test {
 protected:
  MultiNodeGeneration() { small_options(scratch_); }

  Words generate(const Words& more) const {
    Words argv{SHARDWISE_PROGRAM,
               "generate",
               "--model",
               scratch_.path(),
               "--load-format",
               "dummy",
               "--prompt-ids",
               "1,2",
               "--num-return",
               "3",
               "--temperature",
               "1",
               "--ignore-eos",
               "--max-new-tokens",
               "12",
               "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  Scratch scratch_;
};

json printed(Program program) {
  EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
  return json::parse(program.output());
}

TEST_F(MultiNodeGeneration, StagesGiveTheTokensOfOneNode) {
  const json expected = printed(Program(generate({}), environment()))["results"];
  ASSERT_EQ(expected.size(), 3u);
  for (const auto& [ranks, flags] :
       {std::pair(2, Words{"--pp", "2"}), std::pair(4, Words{"--pp", "2", "--tp", "2"})})
    EXPECT_EQ(printed(Program(mpirun(ranks, generate(flags)), kTwoNodes))["results"], expected);
}

TEST_F(MultiNodeGeneration, ReportsThatMemoryIsNotPlanned) {
  Program program(mpirun(2, generate({"--tp", "2"})), kTwoNodes);
  EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
  const std::string line = "generate: peak memory is not planned for ranks over MPI",
                    errors = program.errors();
  const size_t found = errors.find(line);
  EXPECT_NE(found, std::string::npos) << errors;
  EXPECT_EQ(errors.find(line, found + 1), std::string::npos) << errors;
  const json document = json::parse(program.output()), memory = document.at("memory");
  EXPECT_FALSE(document.contains("expected_memory")) << document;
  for (const char* absent : {"expected_peak_bytes", "peak_symmetric_heap_bytes"})
    EXPECT_FALSE(memory.contains(absent)) << memory;
  EXPECT_EQ(memory.at("peak_bytes"), memory.at("peak_private_bytes"));
}

}  // namespace
}  // namespace shardwise::testing::mpi_generation_test
