// --profile: the trace of every rank, and the tables.
#include <map>
#include <set>

#include "tests/cli/train_program.h"
#include "tests/support/error_text.h"

namespace shardwise::cli::profile_test {
namespace {

using namespace shardwise::testing;
using test::contains;

class Profile : public TrainProgram {};

/// What a trace says of one rank.
struct RankTrace {
  int steps = 0;
  double step_us = 0, nested_us = 0;  // of the ops directly within steps: nested ones lie within those
  std::set<std::string> ops, layers;
};

/// Ops that lie within another one count once: an op that ends before the last one counted lies within it.
std::map<int, RankTrace> traces_in(const json& trace) {
  std::map<int, RankTrace> ranks;
  std::map<int, double> end_of;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    RankTrace& rank = ranks[event.at("pid")];
    const double begin = event.at("ts"), duration = event.at("dur");
    if (event.at("name") == "step") {
      rank.steps += 1;
      rank.step_us += duration;
      continue;
    }
    rank.ops.insert(event.at("name"));
    rank.layers.insert(event.at("cat"));
    double& end = end_of[event.at("pid")];
    if (begin < end) continue;
    rank.nested_us += duration;
    end = begin + duration;
  }
  return ranks;
}

TEST_F(Profile, OfTrainingHasEveryRanksOpsOfStepsThreeToFive) {
  const std::string file = scratch_ / "trace.json";
  Program program(argv({"--tp", "2", "--steps", "6", "--profile", file}), kOneThread);
  expect_success(program);
  const std::map<int, RankTrace> ranks = traces_in(json::parse(test::contents(file)));
  ASSERT_EQ(ranks.size(), 2u);
  for (const auto& [number, rank] : ranks) {
    EXPECT_EQ(rank.steps, 3);
    for (const char* op :
         {"product", "weight_gradient", "attention", "attention_backward", "rms_norm", "swiglu", "rotary",
          "loss_terms", "adamw", "reduce_scatter", "all_gather", "embedding"})
      EXPECT_TRUE(rank.ops.contains(op)) << op;
    for (const char* layer : {"embedding", "layer 0", "final norm", "head"})
      EXPECT_TRUE(rank.layers.contains(layer)) << layer;
    EXPECT_LE(rank.nested_us, rank.step_us);
    EXPECT_GT(rank.nested_us, 0);
  }
}

TEST_F(Profile, OfTrainingPrintsTablesByOpAndLayer) {
  Program program(argv({"--tp", "2", "--steps", "3", "--profile", scratch_ / "trace.json"}), kOneThread);
  expect_success(program);
  for (const char* part :
       {"mean of 1 profiled steps", "waiting for ranks", "product gate_up_proj", "\nhost ", "layer 0"})
    EXPECT_PRED2(contains, program.errors(), part);
}

TEST_F(Profile, OfTwoStepsIsRefused) {
  Program program(argv({"--steps", "2", "--profile", scratch_ / "trace.json"}), kOneThread);
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_PRED2(contains, program.errors(), "--profile records steps 3 to 5 of a run; got a run of 2");
}

}  // namespace
}  // namespace shardwise::cli::profile_test
