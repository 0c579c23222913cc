// Published figures: each is planned within its band.
#include "shardwise/plan/published.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace shardwise::plan::published_test {
namespace {

TEST(PlanPublished, EveryFigureIsInItsBand) {
  std::map<std::string, int> counts;
  for (const PublishedFigure& figure : published_figures()) {
    EXPECT_TRUE(figure.is_in_band()) << figure.group << ", " << figure.name << ": published "
                                     << figure.published << ", planned " << figure.planned;
    EXPECT_FALSE(figure.source.empty());
    ++counts[figure.group];
  }
  const std::map<std::string, int> expected = {{"bytes of a cached token", 5},
                                               {"parameters", 22},
                                               {"FLOP of a step", 4},
                                               {"TFLOP/s at tokens/s", 3},
                                               {"us of an all_reduce", 27},
                                               {"seconds of a step", 8},
                                               {"parameters of a token", 2},
                                               {"GiB of a first stage", 24},
                                               {"percent of TP's activations", 16},
                                               {"percent that selective saves", 2},
                                               {"days of training", 2},
                                               {"GiB of a first stage's outputs", 1},
                                               {"GiB of a rank with ZeRO 3", 3},
                                               {"GiB of a rank with ZeRO 3, optimizer offloaded", 3},
                                               {"GiB of a rank with ZeRO 3, all offloaded", 3},
                                               {"GiB of a rank with ZeRO 2", 1},
                                               {"GiB of a rank with ZeRO 2, optimizer offloaded", 1},
                                               {"GiB of weights", 2},
                                               {"training by Adam over weights", 1},
                                               {"MiB of weights and optimizer", 4}};
  EXPECT_EQ(counts, expected);
}

// The link's latency and bandwidth are one line for all numbers of GPUs, whose own lines differ in bandwidth
// by 18 %.
TEST(PlanPublished, AllReducesAreNearOnAverage) {
  double sum = 0;
  int count = 0;
  for (const PublishedFigure& figure : published_figures()) {
    if (figure.group != "us of an all_reduce") continue;
    sum += std::abs(figure.error());
    ++count;
  }
  EXPECT_LT(sum / count, 0.075);
}

// Of any two steps the one that was published to be longer is planned to be longer.
TEST(PlanPublished, StepsAreInTheirOrder) {
  std::map<double, double> planned;
  for (const PublishedFigure& figure : published_figures())
    if (figure.group == "seconds of a step") planned[figure.published] = figure.planned;
  ASSERT_EQ(planned.size(), 8u);
  double before = 0;
  for (const auto& [published, seconds] : planned) {
    EXPECT_GT(seconds, before) << published;
    before = seconds;
  }
}

TEST(PlanPublished, ABandIsClosed) {
  PublishedFigure figure{"g", "n", "s", 100, 90, -0.1, 0.1};
  EXPECT_TRUE(figure.is_in_band());
  figure.planned = 89;
  EXPECT_FALSE(figure.is_in_band());
  figure.planned = 111;
  EXPECT_FALSE(figure.is_in_band());
}

}  // namespace
}  // namespace shardwise::plan::published_test
