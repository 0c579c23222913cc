// Plans of generation: bytes that are known, limits that no time is below, and the reasons of the search.
#include "shardwise/plan/inference_plan.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "shardwise/config/parameters.h"
#include "shardwise/plan/inference_search.h"
#include "tests/plan/read_rates.h"

namespace shardwise::plan::inference_plan_test {
namespace {

InferenceTask task_of(const std::string& preset, int64_t ranks, int64_t texts) {
  return {.config = config::preset(preset),
          .ranks = ranks,
          .prompt_tokens = 512,
          .new_tokens = 128,
          .texts = texts};
}

config::Config quantized(const std::string& preset, config::Quantization q) {
  config::Config config = config::preset(preset);
  config.quantization = q;
  return config;
}

/// One rank with one text.
InferencePlan alone(const InferenceTask& task, const char* machine = "b200") {
  return evaluate(task, {}, built_in_machine(machine));
}

// The KV bytes of a token in bf16: 2·L·kv heads·d·2 (planning figures that others print too).
TEST(InferencePlan, CachesThePublishedBytesPerToken) {
  const std::pair<const char*, int64_t> bytes[] = {{"llama-3.1-8b", 131'072},
                                                   {"llama-3.1-70b", 327'680},
                                                   {"llama-3.1-405b", 516'096},
                                                   {"llama-2-7b", 524'288}};
  for (const auto& [preset, of_token] : bytes) {
    EXPECT_EQ(alone(task_of(preset, 1, 1)).memory.cache, of_token * 640) << preset;
    EXPECT_EQ(alone(task_of(preset, 1, 3)).memory.cache, 3 * of_token * 640) << preset;
  }
  // KV heads are replicated on more ranks than there are.
  const InferenceTask task = task_of("llama-3.1-70b", 16, 1);
  const auto cache = [&](int64_t tp) {
    return evaluate(task, {tp, 1}, built_in_machine("h100")).memory.cache;
  };
  EXPECT_EQ(cache(8), 40'960 * 640);
  EXPECT_EQ(cache(16), cache(8));
  InferenceTask int8 = task_of("llama-3.1-8b", 1, 1);
  int8.has_int8_cache = true;
  EXPECT_EQ(alone(int8).memory.cache, 2 * 32 * 8 * (128 + 4) * 640);
}

TEST(InferencePlan, HoldsTheBytesOfItsWeights) {
  const int64_t n = 8'030'261'248, embedding = int64_t{128256} * 4096, norms = 65 * 4096,
                linear = n - 2 * embedding - norms;
  EXPECT_EQ(weight_bytes(config::preset("llama-3.1-8b"), 1, 2), 2 * n);
  EXPECT_EQ(weight_bytes(config::preset("llama-3.1-8b"), 1, 4), 4 * n);
  EXPECT_EQ(weight_bytes(quantized("llama-3.1-8b", {.bits = 4, .group_size = 128}), 1, 2),
            linear / 2 + linear / 128 * 2 + 2 * (2 * embedding + norms));
  // A scale for each row: of q, k, v, o, gate, up and down.
  const int64_t rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096);
  EXPECT_EQ(weight_bytes(quantized("llama-3.1-8b", {.bits = 8}), 1, 2),
            linear + 2 * rows + 2 * (2 * embedding + norms));
  EXPECT_EQ(
      weight_bytes(
          quantized("llama-3.1-8b",
                    {.bits = 4, .group_size = 128, .lm_head = true, .embeddings = true, .int8_head = true}),
          1, 2),
      linear / 2 + linear / 128 * 2 + 2 * (embedding + 2 * 128256) + 2 * norms);
  EXPECT_EQ(
      weight_bytes(quantized("llama-3.1-8b", {.bits = 4, .group_size = 128, .is_symmetric = false}), 1, 2),
      linear / 2 + linear / 128 * 2 + linear / 128 / 2 + 2 * (2 * embedding + norms));
  for (const int64_t tp : {2, 4, 8})
    EXPECT_EQ(weight_bytes(config::preset("llama-3.1-8b"), tp, 2), 2 * ((n - norms) / tp + norms));
}

// A token reads every weight of a rank but the embedding, and the cache; a prompt has two operations for each
// weight and token.
TEST(InferencePlan, NoForwardIsFasterThanMemoryOrArithmetic) {
  for (const char* name : {"h100", "b200"}) {
    const Machine machine = built_in_machine(name);
    for (const char* preset : {"llama-3.1-8b", "llama-3.1-70b", "gpt2", "mistral-7b"}) {
      for (const int64_t tp : {1, 2, 4}) {
        for (const int64_t texts : {1, 16}) {
          const InferenceTask task = task_of(preset, tp, texts);
          const InferencePlan plan = evaluate(task, {tp, 1}, machine);
          const config::Config& c = task.config;
          const int64_t embedding = 2 * c.vocab_size * c.hidden_size / tp;
          EXPECT_GT(plan.token.total(), static_cast<double>(plan.memory.weights - 2 * embedding) /
                                            machine.memory_bytes_per_second.value);
          const auto n = static_cast<double>(config::parameter_count(c) - 2 * c.vocab_size * c.hidden_size);
          EXPECT_GT(plan.prompts.total(), 2 * n * static_cast<double>(texts * 512) / static_cast<double>(tp) /
                                              machine.rates_16_bit.flop_per_second.value);
          EXPECT_EQ(plan.token.tensor_parallel > 0, tp > 1);
          EXPECT_LT(plan.token.tensor_parallel, plan.prompts.tensor_parallel + (tp == 1 ? 1 : 0));
        }
      }
    }
  }
}

TEST(InferencePlan, MoreTextsTakeLongerAndEachLess) {
  const Machine machine = built_in_machine("h100");
  double before = 0, each_before = 1e9;
  for (const int64_t texts : {1, 2, 8, 64}) {
    const double seconds = evaluate(task_of("llama-3.1-8b", 1, texts), {}, machine).token.total();
    EXPECT_GT(seconds, before);
    EXPECT_LT(seconds / static_cast<double>(texts), each_before);
    before = seconds;
    each_before = seconds / static_cast<double>(texts);
  }
}

// A token's products are limited by reading their weights; the embedding's row is all that it reads of that.
TEST(InferencePlan, FewerBitsAreFasterByTheBytesThatAreNotRead) {
  InferenceTask task = task_of("llama-3.1-70b", 1, 1);
  const InferencePlan bf16 = alone(task, "h100");
  for (const config::Quantization& q :
       {config::Quantization{.bits = 8}, config::Quantization{.bits = 4, .group_size = 128},
        config::Quantization{.bits = 4, .group_size = 32, .lm_head = true, .int8_head = true}}) {
    task.config.quantization = q;
    const InferencePlan plan = alone(task, "h100");
    const double fewer = static_cast<double>(bf16.memory.weights - plan.memory.weights);
    EXPECT_NEAR(bf16.token.total() - plan.token.total(),
                fewer / built_in_machine("h100").memory_bytes_per_second.value, 1e-3 * bf16.token.total());
    // Prompts are limited by arithmetic.
    EXPECT_NEAR(plan.prompts.total() / bf16.prompts.total(), 1, 0.1);
  }
}

TEST(InferencePlan, TakesMeasuredProductsByRowsAndBits) {
  Machine machine = built_in_machine("h100");
  machine.inference = inference_rates(1e9, 2e9, 4e9, 1e15);
  InferenceTask task = task_of("llama-3.1-8b", 1, 2);
  const double linear = 2.0 * 2 * (8'030'261'248 - 2 * int64_t{128256} * 4096 - 65 * 4096),
               head = 2.0 * 2 * 128256 * 4096;
  const auto seconds = [&] { return evaluate(task, {}, machine).token.total(); };
  EXPECT_NEAR(seconds() / ((linear + head) / 1e9), 1, 0.01);
  task.config.quantization =
      config::Quantization{.bits = 4, .group_size = 128, .lm_head = true, .int8_head = true};
  EXPECT_NEAR(seconds() / (linear / 4e9 + head / 2e9), 1, 0.01);
}

// Of a token of two texts: keys and values of 1024 features, in 32 layers.
TEST(InferencePlan, TakesTheMeasuredRateOfCachedAttention) {
  Machine machine = built_in_machine("h100");
  machine.inference = inference_rates(1e15, 1e15, 1e15, 3e9);
  InferenceTask task = task_of("llama-3.1-8b", 1, 2);
  const auto seconds = [&](int64_t prompt) {
    task.prompt_tokens = prompt;
    return evaluate(task, {}, machine).token.total();
  };
  EXPECT_NEAR(seconds(5000) - seconds(1000), 2 * 4000 * 2.0 * 1024 * 32 / 3e9, 1e-6);
}

TEST(InferencePlan, HostsTakeTimeForEachBlockAndText) {
  Machine machine = built_in_machine("h100");
  machine.inference = inference_rates(1e15, 1e15, 1e15, 1e15);
  InferenceTask task = task_of("llama-3.1-8b", 1, 3);
  const auto seconds = [&] { return evaluate(task, {}, machine).token.total(); };
  const double without = seconds();
  machine.inference->seconds_per_block = 0.5;
  machine.inference->seconds_per_text = 0.25;
  EXPECT_NEAR(seconds() - without, 32 * (0.5 + 3 * 0.25), 1e-9);
}

// A token reads 16.06 GB less the embedding's 1.05 GB, and 131,072 bytes for each cached token.
TEST(InferencePlan, ReadsFromACacheWhatItHolds) {
  Machine machine = built_in_machine("h100");
  machine.inference = inference_rates(1e9, 1e9, 1e9, 1e9);
  const auto rate = [](double per_second) { return Rate({{1, per_second}}, "here"); };
  auto& attention = machine.inference->cached_attention;
  machine.inference->bf16.from_cache = attention.one_query.from_cache = attention.shared.from_cache =
      rate(4e9);
  InferenceTask task = task_of("llama-3.1-8b", 1, 1);
  task.prompt_tokens = 10'000;
  task.new_tokens = 1;
  const double read = 2 * (8'030'261'248.0 - 128256 * 4096) + 131'072.0 * 10'000;
  const auto seconds_if_held = [&](double bytes) {
    machine.inference->reading = Rate({{bytes, 1e11}, {1.001 * bytes, 1e9}}, "here");
    return evaluate(task, {}, machine).token.total();
  };
  EXPECT_NEAR(seconds_if_held(0.99 * read) / seconds_if_held(1.01 * read), 4, 0.02);
}

TEST(InferencePlan, AWindowLimitsWhatATokenReads) {
  InferenceTask task = task_of("llama-3.1-8b", 1, 8);
  task.prompt_tokens = 100'000;
  const double all = alone(task).token.total();
  task.config.sliding_window = 4096;
  const double window = alone(task).token.total();
  const double read = 8 * 131'072 * (100'064.0 - 4096);
  EXPECT_NEAR(all - window, read / built_in_machine("b200").memory_bytes_per_second.value, 0.02 * all);
}

TEST(InferenceSearch, GivesEverySplitOnceFastestFirstOrAReason) {
  const InferenceSearchResult found =
      search(task_of("llama-3.1-70b", 8, 16), built_in_machine("h100"), {.pp = 1}, {});
  std::vector<int64_t> fitting;
  double before = 0;
  for (const InferencePlan& plan : found.plans) {
    EXPECT_EQ(plan.degrees.tp * plan.degrees.replicas, 8);
    EXPECT_GE(plan.seconds(128), before);
    before = plan.seconds(128);
    fitting.push_back(plan.degrees.tp);
  }
  std::ranges::sort(fitting);
  EXPECT_EQ(fitting, (std::vector<int64_t>{2, 4, 8}));
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_EQ(found.refused[0].degrees, (InferenceDegrees{1, 8}));
  EXPECT_NE(found.refused[0].reason.find("weights 141.1"), std::string::npos) << found.refused[0].reason;
}

TEST(InferenceSearch, NamesTheRuleThatASplitBreaks) {
  const Machine machine = built_in_machine("h100");
  const InferenceSearchResult found = search(task_of("gpt2", 24, 3), machine, {.pp = 1}, {});
  std::map<int64_t, std::string> reasons;
  for (const RefusedInference& one : found.refused) reasons[one.degrees.tp] = one.reason;
  EXPECT_EQ(reasons[24], "tp 24 is more than the 12 query heads");
  EXPECT_EQ(reasons[4], "6 replicas are more than the 3 texts");
  EXPECT_EQ(search(task_of("gpt2", 24, 3), machine, {.tp = 12, .pp = 1}, {}).plans.size(), 1u);
  EXPECT_EQ(search(task_of("gpt2", 24, 24), machine, {}, 1'000'000).plans.size(), 0u);
  EXPECT_THROW(search(task_of("gpt2", 24, 3), machine, {.tp = 5}, {}), c10::ValueError);
  EXPECT_THROW(search(task_of("gpt2", 24, 3), machine, {}, 0), c10::ValueError);
}

TEST(InferencePlan, RefusesSizesThatAreNotPositiveOrOverflow) {
  const Machine machine = built_in_machine("h100");
  for (int64_t InferenceTask::*size :
       {&InferenceTask::prompt_tokens, &InferenceTask::new_tokens, &InferenceTask::texts}) {
    InferenceTask task = task_of("gpt2", 1, 1);
    task.*size = 0;
    EXPECT_THROW(evaluate(task, {}, machine), c10::ValueError);
    task.*size = int64_t{1} << 35;
    EXPECT_THROW(evaluate(task, {}, machine), c10::ValueError);
  }
  EXPECT_THROW(evaluate(task_of("gpt2", 1, 1), {0, 1}, machine), c10::ValueError);
  EXPECT_THROW(evaluate(task_of("gpt2", 16, 1), {16, 1}, machine), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::inference_plan_test
