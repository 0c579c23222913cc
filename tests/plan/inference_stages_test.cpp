// Generation on pipeline stages: what the stages hold and compute together is what one rank does, and no time
// is below what the slowest of them needs.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "shardwise/config/parameters.h"
#include "shardwise/plan/inference_search.h"
#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::inference_stages_test {
namespace {

const char* const kModels[] = {"llama-3.1-8b", "gpt2", "mistral-7b", "qwen3-30b-a3b", "deepseek-v3"};

InferenceTask task_of(const std::string& preset, int64_t ranks, int64_t texts) {
  const config::Config config = config::preset_to_plan(preset);
  return {.config = config, .ranks = ranks, .prompt_tokens = 512, .new_tokens = 128, .texts = texts};
}

/// As task_of, with a prompt of one token: the message of a stage to the next is as large as the last norm.
InferenceTask one_by_one(const std::string& preset, int64_t ranks) {
  InferenceTask task = task_of(preset, ranks, /*texts=*/1);
  task.new_tokens += task.prompt_tokens - 1;
  task.prompt_tokens = 1;
  return task;
}

// Llama-3.1-8B: 32 blocks of 218,112,000 parameters, an embedding and a head of 128256 x 4096, and a norm.
TEST(InferenceStages, TheLastStageOfFourHasEightBlocksNormAndHead) {
  const InferencePlan plan = evaluate(one_by_one("llama-3.1-8b", 4), {.pp = 4}, built_in_machine("h100"));
  EXPECT_EQ(plan.peak_stage, 3);
  EXPECT_EQ(plan.memory.weights, 2 * (8 * int64_t{218'112'000} + int64_t{128'256} * 4096 + 4096));
  EXPECT_EQ(plan.memory.cache, 640 * 131'072 / 4);
}

// GPT-2's head is its embedding, 50257 x 768, which two stages hold; the first has 1024 positions too. Blocks
// have 7,087,872 parameters.
TEST(InferenceStages, ATiedHeadIsOnTwoStages) {
  const InferencePlan plan = evaluate(task_of("gpt2", 3, 1), {.pp = 3}, built_in_machine("h100"));
  EXPECT_EQ(plan.peak_stage, 0);
  EXPECT_EQ(plan.memory.weights, 2 * (4 * 7'087'872 + int64_t{50'257} * 768 + 1024 * 768));
}

// Llama-3.2-1B's too: the last of two stages has 8 blocks of 60,821,504, the copy, and the norm.
TEST(InferenceStages, TheLastStageHasACopyOfATiedHead) {
  const InferencePlan plan = evaluate(one_by_one("llama-3.2-1b", 2), {.pp = 2}, built_in_machine("h100"));
  EXPECT_EQ(plan.peak_stage, 1);
  EXPECT_EQ(plan.memory.weights, 2 * (8 * int64_t{60'821'504} + int64_t{128'256} * 2048 + 2048));
}

// Before the next stage receives the rows of a prompt, they are in memory twice: 512 of 4096 elements.
TEST(InferenceStages, AStageHoldsItsMessageToTheNext) {
  const auto buffers = [](int64_t pp) {
    const InferencePlan plan = evaluate(task_of("llama-3.1-8b", pp, 1), {.pp = pp}, built_in_machine("h100"));
    EXPECT_EQ(plan.peak_stage, 0);
    return plan.memory.buffers;
  };
  EXPECT_EQ(buffers(4) - buffers(1), 512 * 4096 * 2);
}

// 61 blocks on four stages: 16, 15, 15 and 15. The first stage has 3 small blocks, the second none.
TEST(InferenceStages, BlocksOfDifferentKindsCountEach) {
  constexpr int64_t h = 7168,
                    attention = 1536 * h + 1536 + 128 * 192 * 1536 + 576 * h + 512 + 128 * 256 * 512 +
                                h * 128 * 128 + 2 * h,
                    mixture = 256 * h + 256 + 257 * 3 * h * 2048, dense = 3 * h * 18432;
  const InferencePlan plan = evaluate(task_of("deepseek-v3", 4, 1), {.pp = 4}, built_in_machine("h100"));
  EXPECT_EQ(plan.peak_stage, 3);
  EXPECT_EQ(plan.memory.weights, 2 * (15 * (attention + mixture) + 129280 * h + h));
  const InferencePlan blocks = evaluate(task_of("deepseek-v3", 61, 1), {.pp = 61}, built_in_machine("h100"));
  EXPECT_EQ(blocks.peak_stage, 60);
  EXPECT_EQ(blocks.memory.weights, 2 * (attention + mixture + 129280 * h + h));
  // Three dense blocks and the embedding on the first stage.
  InferenceTask task = task_of("deepseek-v3", 2, 1);
  task.config.num_hidden_layers = 6;
  task.config.experts->count = task.config.experts->per_token = 4;
  EXPECT_EQ(evaluate(task, {.pp = 2}, built_in_machine("h100")).memory.weights,
            2 * (3 * (attention + dense) + 129280 * h));
}

/// A machine of one node whose messages take a millisecond and a nanosecond a byte.
Machine machine_with_messages() {
  Machine machine = synthetic_machine(64, 1e15, 0);
  machine.within_node = {{1e9, ""}, {1, ""}, {1e-3, ""}, {0, ""}, {0, ""}};
  return machine;
}

// One batch passes one stage after the other: the time of one rank, and messages.
TEST(InferenceStages, ATokenPassesAllStagesAndTheMessagesBetween) {
  const Machine machine = machine_with_messages();
  for (const char* preset : kModels) {
    const InferenceTask task = task_of(preset, 12, 5);
    const InferencePlan one = evaluate(task, {}, machine);
    EXPECT_EQ(one.token.pipeline, 0);
    EXPECT_EQ(one.prompts.pipeline, 0);
    EXPECT_FALSE(one.pipelined_token);
    const InferenceTask text = task_of(preset, 12, 1);  // whose prompt is one forward
    const double prompt = evaluate(text, {}, machine).prompts.compute;
    for (const int64_t pp : {2, 3, 12}) {
      EXPECT_NEAR(evaluate(text, {.pp = pp}, machine).prompts.compute / prompt, 1, 1e-9) << preset;
      const InferencePlan plan = evaluate(task, {.pp = pp}, machine);
      EXPECT_NEAR(plan.token.compute / one.token.compute, 1, 1e-9) << preset;
      // Hidden states of five rows, and at last their ids of eight bytes.
      const auto bytes = static_cast<double>(5 * task.config.hidden_size * 2), hops = static_cast<double>(pp);
      EXPECT_NEAR(plan.token.pipeline, hops * 1e-3 + ((hops - 1) * bytes + 5 * 8) * 1e-9, 1e-9) << preset;
    }
  }
}

TEST(InferenceStages, MicroBatchesFillThePipelineIfThereAreEnoughTexts) {
  const Machine machine = built_in_machine("h100");
  for (const char* preset : kModels) {
    EXPECT_FALSE(evaluate(task_of(preset, 4, 3), {.pp = 4}, machine).pipelined_token) << preset;
    for (const int64_t texts : {4, 6, 64}) {
      const InferencePlan plan = evaluate(task_of(preset, 4, texts), {.pp = 4}, machine),
                          micro_batch = evaluate(task_of(preset, 4, (texts + 3) / 4), {.pp = 4}, machine);
      ASSERT_TRUE(plan.pipelined_token) << preset;
      // A micro-batch returns to the first stage after it has passed all; the slowest stage has each of them.
      EXPECT_GE(*plan.pipelined_token, micro_batch.token.total()) << preset;
      EXPECT_LE(*plan.pipelined_token, 4 * micro_batch.token.total()) << preset;
      EXPECT_EQ(plan.seconds_per_token(), std::min(*plan.pipelined_token, plan.token.total()));
      EXPECT_DOUBLE_EQ(plan.seconds(10), plan.prompts.total() + 9 * plan.seconds_per_token());
    }
  }
  // Long contexts are read by four stages at once; of short ones the weights are read four times instead.
  InferenceTask task = task_of("llama-3.1-8b", 4, 64);
  EXPECT_GT(*evaluate(task, {.pp = 4}, machine).pipelined_token,
            0.8 * evaluate(task, {.pp = 4}, machine).token.total());
  task.prompt_tokens = 100'000;
  const InferencePlan plan = evaluate(task, {.pp = 4}, machine);
  EXPECT_NEAR(*plan.pipelined_token / plan.token.total(), 0.25, 0.03);
}

// F forwards on p stages take (F + p - 1) / (F·p) of the time of one rank, if the stages are equal.
TEST(InferenceStages, PromptsAreMicroBatchesOfThePipeline) {
  const Machine machine = synthetic_machine(64, 1e12, 0);
  for (const int64_t texts : {1, 4, 64}) {
    for (const int64_t pp : {2, 4, 8}) {
      const double one = evaluate(task_of("llama-3.1-8b", pp, texts), {}, machine).prompts.total(),
                   piped = evaluate(task_of("llama-3.1-8b", pp, texts), {.pp = pp}, machine).prompts.total();
      const auto forwards = static_cast<double>(texts), stages = static_cast<double>(pp);
      EXPECT_NEAR(piped / one, (forwards + stages - 1) / (forwards * stages), 0.01) << texts << " " << pp;
      EXPECT_GE(piped, one / stages);
    }
  }
}

// Of a prompt each stage needs its weights' arithmetic, of a token their bytes: at best all stages at once,
// and one after the other for a batch.
TEST(InferenceStages, NoTimeIsBelowReadingTheWeights) {
  const Machine machine = built_in_machine("h100");
  for (const char* preset : {"llama-3.1-8b", "llama-3.1-70b", "mistral-7b"}) {
    for (const int64_t tp : {1, 2, 4}) {
      const InferenceTask task = task_of(preset, 4 * tp, 16);
      const config::Config& c = task.config;
      const int64_t read = weight_bytes(c, tp, 2) - 2 * c.vocab_size * c.hidden_size / tp;
      for (const int64_t pp : {1, 2, 4}) {
        const InferencePlan plan = evaluate(task, {.tp = tp, .pp = pp}, machine);
        const double once = static_cast<double>(read) / machine.memory_bytes_per_second.value;
        EXPECT_GT(plan.token.total(), once) << preset << " " << tp << " " << pp;
        EXPECT_EQ(plan.pipelined_token.has_value(), pp > 1);
        EXPECT_GT(plan.pipelined_token.value_or(2 * once), once) << preset << " " << tp << " " << pp;
        const auto n = static_cast<double>(config::parameter_count(c) - 2 * c.vocab_size * c.hidden_size);
        EXPECT_GT(plan.prompts.total(), 2 * n * 16 * 512 / static_cast<double>(tp * pp) /
                                            machine.rates_16_bit.flop_per_second.value)
            << preset;
      }
    }
  }
}

TEST(InferenceStages, MoreRanksNeedNoMoreMemory) {
  for (const char* preset : kModels) {
    for (const int64_t texts : {1, 64}) {
      for (const int64_t tp : {1, 2}) {
        int64_t before = std::numeric_limits<int64_t>::max();
        for (const int64_t pp : {1, 2, 4, 8}) {
          const InferencePlan plan =
              evaluate(task_of(preset, tp * pp, texts), {.tp = tp, .pp = pp}, built_in_machine("h100"));
          EXPECT_LE(plan.memory.total(), before) << preset << " " << tp << " " << pp;
          before = plan.memory.total();
        }
      }
    }
  }
}

// Stages of four ranks: two of them in a node of eight, so the message between the second and third leaves
// it.
TEST(InferenceStages, MessagesLeaveANodeWhereAStageIsInAnother) {
  Machine machine = machine_with_messages();
  machine.devices_per_node = 8;
  machine.across_nodes = Link{{1e12, ""}, {1, ""}, {1, ""}, {0, ""}, {0, ""}};
  const auto messages = [&](InferenceDegrees degrees) {
    return evaluate(task_of("llama-3.1-8b", degrees.tp * degrees.pp, 1), degrees, machine).token.pipeline;
  };
  EXPECT_NEAR(messages({.tp = 4, .pp = 2}), 2 * 1e-3, 1e-4);
  EXPECT_NEAR(messages({.tp = 4, .pp = 4}), 2 * 1e-3 + 2 * 1, 1e-4);  // the second of three, and the ids
  EXPECT_NEAR(messages({.tp = 8, .pp = 2}), 2 * 1, 1e-4);
  EXPECT_NEAR(messages({.tp = 3, .pp = 2}), 2 * 1e-3, 1e-4);
  EXPECT_NEAR(messages({.tp = 3, .pp = 3}), 1e-3 + 2 * 1, 1e-4);  // the third stage is on ranks 6 to 8
}

TEST(InferenceStages, TheSearchTriesEveryDivisionOnce) {
  const InferenceSearchResult found =
      search(task_of("llama-3.1-8b", 12, 12), built_in_machine("h100"), {}, {});
  std::map<std::pair<int64_t, int64_t>, int> tried;
  for (const InferencePlan& plan : found.plans) ++tried[{plan.degrees.tp, plan.degrees.pp}];
  for (const RefusedInference& one : found.refused) ++tried[{one.degrees.tp, one.degrees.pp}];
  EXPECT_EQ(tried.size(), 18u);  // (2² · 3): ordered factors in three, 6 · 3
  for (const auto& [degrees, times] : tried) {
    EXPECT_EQ(12 % (degrees.first * degrees.second), 0);
    EXPECT_EQ(times, 1);
  }
  double before = 0;
  for (const InferencePlan& plan : found.plans) {
    EXPECT_GE(plan.seconds(128), before);
    before = plan.seconds(128);
  }
}

TEST(InferenceStages, RefusalsNameTheRuleOrTheStage) {
  const Machine machine = built_in_machine("h100");
  const auto reason = [&](const InferenceTask& task, const InferencePins& pins) {
    const InferenceSearchResult found = search(task, machine, pins, {});
    return found.refused.empty() ? "" : found.refused[0].reason;
  };
  EXPECT_EQ(reason(task_of("gpt2", 16, 16), {.pp = 16}), "pp 16 is more than the 12 blocks");
  EXPECT_EQ(reason(task_of("llama-3.1-70b", 4, 3), {.tp = 1, .pp = 1}),
            "4 replicas are more than the 3 texts");
  const std::string memory = reason(task_of("llama-3.1-405b", 4, 1), {.tp = 1, .pp = 4});
  EXPECT_EQ(memory.find("a rank of stage 0 needs 20"), 0u) << memory;
  EXPECT_THROW(search(task_of("gpt2", 8, 8), machine, {.pp = 3}, {}), c10::ValueError);
  EXPECT_THROW(search(task_of("gpt2", 8, 8), machine, {.tp = 4, .pp = 4}, {}), c10::ValueError);
  for (const int64_t pp : {-1, 0}) {
    EXPECT_THROW(search(task_of("gpt2", 8, 8), machine, {.pp = pp}, {}), c10::ValueError);
    EXPECT_THROW(evaluate(task_of("gpt2", 8, 8), {.pp = pp}, machine), c10::ValueError);
  }
  EXPECT_THROW(evaluate(task_of("gpt2", 13, 1), {.pp = 13}, machine), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::inference_stages_test
