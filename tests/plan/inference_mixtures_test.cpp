// Generation with experts and latent attention: bytes and FLOP counted from published shapes, and the
// expected number of experts against counts of all choices and of random ones.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shardwise/plan/inference_search.h"
#include "shardwise/plan/routed_experts.h"
#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::inference_mixtures_test {
namespace {

const char* const kMixtures[] = {"mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3"};

InferenceTask task_of(const std::string& preset, int64_t ranks, int64_t texts) {
  return {.config = config::preset_to_plan(preset),
          .ranks = ranks,
          .prompt_tokens = 512,
          .new_tokens = 128,
          .texts = texts};
}

InferencePlan plan_of(const InferenceTask& task, const InferenceDegrees& degrees) {
  return evaluate(task, degrees, built_in_machine("h200"));
}

// Of Mixtral-8x7B, with 32 query and 8 KV heads of 128 features, and 8 experts of 14336.
TEST(InferenceMixtures, MixtralsWeightsAreItsShapesDividedByTwo) {
  constexpr int64_t h = 4096, layers = 32, qkv = (32 + 2 * 8) * 128 * h / 2, o = h * 32 * 128 / 2,
                    experts = 8 * 3 * h * 14336 / 2, whole = 2 * h + 8 * h, vocab = 32000 * h / 2;
  constexpr int64_t bytes = 2 * (layers * (qkv + o + experts + whole) + 2 * vocab + h);
  const InferenceTask task = task_of("mixtral-8x7b", 2, 1);
  EXPECT_EQ(plan_of(task, {.tp = 2}).memory.weights, bytes);
  // Four whole experts of a rank are as many bytes as half of eight.
  EXPECT_EQ(plan_of(task, {.tp = 2, .ep = 2}).memory.weights, bytes);
  // Two replicas of one rank share the experts.
  const int64_t alone = 2 * (layers * (2 * (qkv + o) + experts + whole) + 4 * vocab + h);
  EXPECT_EQ(plan_of(task_of("mixtral-8x7b", 2, 2), {.replicas = 2, .ep = 2}).memory.weights, alone);
}

// Of DeepSeek-V3: 61 blocks, the first three with a dense MLP of 18432.
TEST(InferenceMixtures, DeepSeeksWeightsAreItsShapesOnEightRanks) {
  constexpr int64_t h = 7168, heads = 128 / 8;
  constexpr int64_t attention = 1536 * h + 1536 + heads * 192 * 1536 + 576 * h + 512 +
                                heads * (128 + 128) * 512 + h * heads * 128 + 2 * h,
                    dense = 3 * h * 18432 / 8, shared = 3 * h * 2048 / 8, router = 256 * h + 256,
                    expert = 3 * h * 2048, outside = 2 * 129280 / 8 * h + h;
  const auto bytes = [&](int64_t experts) {
    return 2 * (61 * attention + 3 * dense + 58 * (shared + router + experts) + outside);
  };
  EXPECT_EQ(plan_of(task_of("deepseek-v3", 8, 1), {.tp = 8}).memory.weights, bytes(256 * expert / 8));
  EXPECT_EQ(plan_of(task_of("deepseek-v3", 8, 1), {.tp = 8, .ep = 4}).memory.weights, bytes(64 * expert / 2));
  EXPECT_EQ(plan_of(task_of("deepseek-v3", 32, 4), {.tp = 8, .replicas = 4, .ep = 32}).memory.weights,
            bytes(8 * expert));
}

// 70,272 bytes of a token in bf16 (61 · (512 + 64) · 2): each rank needs the latents for its heads.
TEST(InferenceMixtures, LatentsAreCachedOnceAndOnEveryRank) {
  InferenceTask task = task_of("deepseek-v3", 8, 3);
  for (const int64_t tp : {1, 2, 8})
    EXPECT_EQ(plan_of(task, {.tp = tp}).memory.cache, int64_t{70'272} * 3 * 640) << tp;
  task.has_int8_cache = true;
  EXPECT_EQ(plan_of(task, {.tp = 8}).memory.cache, int64_t{61} * (576 + 4) * 3 * 640);
  // Mixtral caches keys and values of 8 heads.
  EXPECT_EQ(plan_of(task_of("mixtral-8x7b", 2, 1), {.tp = 2}).memory.cache, 2 * 32 * 4 * 128 * 2 * 640);
}

// All but the router in int8, with a scale for each row of each expert.
TEST(InferenceMixtures, ExpertsAreQuantizedAndRoutersAreNot) {
  InferenceTask task = task_of("mixtral-8x7b", 2, 1);
  task.config.quantization = config::Quantization{.bits = 8};
  constexpr int64_t h = 4096, f = 14336;
  constexpr int64_t qkv = 3072 * h + 2 * 3072, o = h * 2048 + 2 * h,
                    expert = (2 * f * h + h * f) / 2 + 2 * (2 * f / 2 + h), whole = 2 * (2 * h + 8 * h);
  EXPECT_EQ(plan_of(task, {.tp = 2}).memory.weights,
            32 * (qkv + o + 8 * expert + whole) + 2 * (32000 * h + h));
  EXPECT_EQ(plan_of(task, {.tp = 2, .ep = 2}).memory.weights,
            32 * (qkv + o + 4 * (3 * f * h + 2 * (2 * f + h)) + whole) + 2 * (32000 * h + h));
}

/// Calls f(set of chosen experts) for every way in which `rows` rows choose 2 of `count` experts.
template <class F>
void for_each_choice(int64_t count, int64_t rows, const std::set<int64_t>& before, const F& f) {
  if (rows == 0) return f(before);
  for (int64_t a = 0; a < count; ++a) {
    for (int64_t b = a + 1; b < count; ++b) {
      std::set<int64_t> chosen = before;
      chosen.insert({a, b});
      for_each_choice(count, rows - 1, chosen, f);
    }
  }
}

TEST(ExpectedExperts, AreThoseOfAllEquallyLikelyChoices) {
  for (const int64_t count : {2, 3, 5}) {
    for (const int64_t rows : {1, 2, 3}) {
      double ways = 0, held_by_first = 0, all = 0;
      for_each_choice(count, rows, {}, [&](const std::set<int64_t>& chosen) {
        ways += 1;
        all += static_cast<double>(chosen.size());
        held_by_first += static_cast<double>(chosen.contains(0)) + static_cast<double>(chosen.contains(1));
      });
      const config::Experts experts{.count = count, .per_token = 2};
      EXPECT_NEAR(expected_chosen(experts, count, rows), all / ways, 1e-12);
      EXPECT_NEAR(expected_chosen(experts, 2, rows), held_by_first / ways, 1e-12);
    }
  }
}

TEST(ExpectedExperts, AreThoseOfRandomChoices) {
  std::mt19937_64 random(7);
  for (const char* preset : {"qwen3-30b-a3b", "deepseek-v3"}) {
    const config::Experts experts = *config::preset_to_plan(preset).experts;
    for (const int64_t rows : {1, 8, 40}) {
      constexpr int kTrials = 400;
      const int64_t held = experts.count / 8;
      double sum = 0, squares = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::set<int64_t> chosen;
        std::vector<int64_t> all(experts.count), row(experts.per_token);
        std::iota(all.begin(), all.end(), 0);
        for (int64_t i = 0; i < rows; ++i) {
          std::sample(all.begin(), all.end(), row.begin(), experts.per_token, random);
          for (const int64_t expert : row)
            if (expert < held) chosen.insert(expert);
        }
        sum += static_cast<double>(chosen.size());
        squares += static_cast<double>(chosen.size() * chosen.size());
      }
      const double mean = sum / kTrials, variance = squares / kTrials - mean * mean;
      EXPECT_NEAR(expected_chosen(experts, held, rows), mean, 5 * std::sqrt(variance / kTrials) + 1e-9)
          << preset << " " << rows;
    }
  }
}

// On a machine whose time is that of its bytes: all weights but the experts', and of those the chosen ones.
TEST(InferenceMixtures, ATokenReadsTheExpertsThatItsRowsChoose) {
  const Machine machine = synthetic_machine(/*ranks=*/8, /*flop_per_second=*/1e30, /*seconds_per_call=*/0);
  for (const char* preset : kMixtures) {
    for (const int64_t texts : {1, 16, 4096}) {
      const InferenceTask task = task_of(preset, 1, texts);
      const config::Config& c = task.config;
      const InferencePlan plan = evaluate(task, {}, machine);
      const int64_t layers = c.num_hidden_layers - c.experts->first_dense_layers, count = c.experts->count,
                    expert = 2 * 3 * c.hidden_size * c.experts->intermediate_size;
      const double chosen =
          static_cast<double>(count) *
          (1 - std::pow(1 - static_cast<double>(c.experts->per_token) / static_cast<double>(count), texts));
      const int64_t others = plan.memory.weights - layers * count * expert - 2 * c.vocab_size * c.hidden_size;
      const double weights =
          static_cast<double>(others) + static_cast<double>(layers) * chosen * static_cast<double>(expert);
      const double cache = static_cast<double>(plan.memory.cache) * (512 + 64) / 640;
      EXPECT_GT(plan.token.compute, (weights + cache) / 1e12) << preset << " " << texts;
      if (texts > 16) continue;  // of which activations are more
      EXPECT_LT(plan.token.compute, 1.02 * (weights + cache) / 1e12) << preset << " " << texts;
    }
  }
}

// On a machine whose time is that of its FLOP. Attention reads 512 + 64 keys' latents: twice, in their size.
TEST(InferenceMixtures, ATokenOfDeepSeekHasTheFlopOfItsActiveParameters) {
  const Machine machine = synthetic_machine(8, /*flop_per_second=*/1e6, 0);
  constexpr double h = 7168, context = 576, heads = 128;
  constexpr double attention = 2 * (h * 1536 + h * 576 + 1536 * heads * 192 + 512 * heads * 256 +
                                    heads * 128 * h + heads * (576 + 512) * context);
  constexpr double dense = 6 * h * 18432, mixture = 6 * h * 2048 * 9 + 2 * h * 256;
  constexpr double flop = 61 * attention + 3 * dense + 58 * mixture + 2 * h * 129280;
  for (const int64_t texts : {1, 5})
    EXPECT_NEAR(evaluate(task_of("deepseek-v3", 1, texts), {}, machine).token.compute,
                static_cast<double>(texts) * flop / 1e6, 1e-6 * flop / 1e6);
  // Prompts: each key is projected, and attended to by half of the later queries on average.
  constexpr double of_prompt = 61 * 2 *
                                   (h * 1536 + h * 576 + 1536 * heads * 192 + 512 * heads * 256 +
                                    heads * 128 * h + heads * (192 + 128) * 256) +
                               3 * dense + 58 * mixture;
  InferenceTask task = task_of("deepseek-v3", 1, 1);
  EXPECT_NEAR(evaluate(task, {}, machine).prompts.compute, (512 * of_prompt + 2 * h * 129280) / 1e6,
              1e-6 * of_prompt * 512 / 1e6);
  // Three forwards: the second projects 512 rows again, the third 1024.
  task.prompt_tokens = 1536;
  const double longer = of_prompt + 61 * 2 * heads * (192 + 128) * 512 + 61 * 2 * 512 * heads * 256;
  EXPECT_NEAR(evaluate(task, {}, machine).prompts.compute, (1536 * longer + 2 * h * 129280) / 1e6,
              1e-6 * longer * 1536 / 1e6);
}

// Every rank sends its part of the rows to the experts of the others, and back: 58 blocks.
TEST(InferenceMixtures, ReplicasThatShareExpertsExchangeTheirRows) {
  Machine machine = synthetic_machine(/*ranks=*/32, 1e30, /*seconds_per_call=*/1e-3);
  const InferenceTask task = task_of("deepseek-v3", 32, 64);
  const auto exchanges = [&](int64_t tp, int64_t ep) {
    return evaluate(task, {.tp = tp, .replicas = 32 / tp, .ep = ep}, machine).token.expert_parallel;
  };
  for (const int64_t ep : {1, 4, 8}) EXPECT_EQ(exchanges(8, ep), 0);
  EXPECT_NEAR(exchanges(8, 16), 58 * 2 * 1e-3, 1e-6);
  machine.within_node = {{1e9, ""}, {1, ""}, {0, ""}, {0, ""}, {0, ""}};
  // 16 rows of a replica of 8 ranks choose 8 experts each; 2 rows of one rank all of them.
  EXPECT_NEAR(exchanges(8, 16), 58 * 2 * (16 * 8 / 8 * 15 / 16 * 7168 * 2) / 1e9, 1e-9);
  EXPECT_NEAR(exchanges(1, 32), 58 * 2 * (2 * 8 * 31.0 / 32 * 7168 * 2) / 1e9, 1e-9);
}

// The sum over the ranks of tp at the end of a block is the experts' too.
TEST(InferenceMixtures, ABlockReducesTwice) {
  const Machine machine = synthetic_machine(8, 1e30, /*seconds_per_call=*/1e-3);
  for (const char* preset : {"mixtral-8x7b", "deepseek-v3"}) {
    const InferenceTask task = task_of(preset, 4, 2);
    for (const int64_t ep : {1, 2, 4})
      EXPECT_NEAR(evaluate(task, {.tp = 4, .ep = ep}, machine).token.tensor_parallel,
                  1e-3 * static_cast<double>(2 * task.config.num_hidden_layers + 1), 1e-6)
          << preset << " " << ep;
  }
}

// Alone, a replica reads the 8 experts that its row chooses; of the 16 of a rank that shares them, 8 rows
// choose 6.5.
TEST(InferenceMixtures, SharingExpertsReadsFewerOfThem) {
  const Machine machine = synthetic_machine(8, 1e30, 0);
  const InferenceTask task = task_of("qwen3-30b-a3b", 8, 8);
  const InferencePlan own = evaluate(task, {.replicas = 8}, machine),
                      shared = evaluate(task, {.replicas = 8, .ep = 8}, machine);
  EXPECT_LT(shared.memory.weights, own.memory.weights / 4);
  EXPECT_LT(shared.token.compute, own.token.compute);
}

TEST(InferenceMixtures, MoreRanksNeedNoMoreMemory) {
  for (const char* preset : kMixtures) {
    for (const int64_t texts : {1, 64}) {
      for (int64_t InferenceDegrees::*axis : {&InferenceDegrees::tp, &InferenceDegrees::pp}) {
        int64_t before = std::numeric_limits<int64_t>::max();
        for (const int64_t size : {1, 2, 4, 8, 16}) {
          InferenceDegrees degrees;
          degrees.*axis = size;
          const int64_t memory = plan_of(task_of(preset, size, texts), degrees).memory.total();
          EXPECT_LE(memory, before) << preset << " " << size;
          before = memory;
        }
      }
    }
  }
}

TEST(InferenceMixtures, TheSearchTriesEveryShareOfTheExperts) {
  const InferenceSearchResult found =
      search(task_of("mixtral-8x7b", 16, 16), built_in_machine("h100"), {}, {});
  std::set<std::array<int64_t, 4>> tried;
  const auto note = [&](const InferenceDegrees& d) {
    EXPECT_EQ(d.tp * d.pp * d.replicas, 16);
    EXPECT_TRUE(tried.insert({d.tp, d.pp, d.ep, d.replicas}).second);
  };
  for (const InferencePlan& plan : found.plans) note(plan.degrees);
  for (const RefusedInference& one : found.refused) note(one.degrees);
  std::set<std::array<int64_t, 4>> all;
  for (const int64_t tp : {1, 2, 4, 8, 16})
    for (const int64_t pp : {1, 2, 4, 8, 16})
      for (const int64_t ep : {1, 2, 4, 8})
        if (16 % (tp * pp) == 0 && ep <= 16 / pp) all.insert({tp, pp, ep, 16 / tp / pp});
  EXPECT_EQ(tried, all);
}

TEST(InferenceMixtures, RefuseSharesThatAreNone) {
  const Machine machine = built_in_machine("h100");
  const InferenceTask task = task_of("mixtral-8x7b", 8, 8);
  EXPECT_THROW(evaluate(task, {.tp = 4, .ep = 3}, machine), c10::ValueError);
  EXPECT_THROW(evaluate(task, {.tp = 2, .replicas = 3, .ep = 4}, machine), c10::ValueError);
  EXPECT_THROW(evaluate(task, {.tp = 8, .replicas = 2, .ep = 16}, machine), c10::ValueError);  // 8 experts
  EXPECT_THROW(evaluate(task, {.ep = 0}, machine), c10::ValueError);
  EXPECT_THROW(search(task, machine, {.ep = 9}, {}), c10::ValueError);
  InferenceTask dense = task;
  dense.config = config::preset("llama-3.1-8b");
  EXPECT_THROW(search(dense, machine, {.ep = 2}, {}), c10::ValueError);
  // A pinned share is a reason where it is none.
  const InferenceSearchResult found = search(task, machine, {.tp = 4, .pp = 1, .ep = 3}, {});
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_EQ(found.refused[0].reason, "ep 3 neither divides tp 4 nor is tp times a divisor of the 2 replicas");
}

}  // namespace
}  // namespace shardwise::plan::inference_mixtures_test
