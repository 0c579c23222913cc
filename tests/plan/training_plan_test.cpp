// Plans of a step over a cluster: against the exact tables of one stage, published formulas and measured
// steps.
#include "shardwise/plan/training_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/peak.h"
#include "shardwise/plan/published.h"
#include "tests/plan/synthetic_machine.h"

namespace shardwise::plan::training_plan_test {
namespace {

TrainingTask task_of(const config::Config& config, int64_t ranks, int64_t batch_size) {
  return {.config = config,
          .ranks = ranks,
          .sequence_length = 1024,
          .batch_size = batch_size,
          .element_bytes = 2};
}

config::Config of_blocks(const char* preset, int64_t blocks) {
  config::Config config = config::preset(preset);
  config.num_hidden_layers = blocks;
  return config;
}

/// The workload of the plan's micro-batch on a stage, built here from its description.
Workload on_stage(const TrainingTask& task, const Degrees& d, int64_t stage) {
  Workload w;
  w.config = task.config;
  w.tp = static_cast<int>(d.tp);
  w.parallelism = d.has_sequence_parallel && d.tp > 1 ? Parallelism::tp_sp : Parallelism::tp;
  w.sequence_length = task.sequence_length;
  w.batch_size = d.micro_batch_size;
  w.element_bytes = task.element_bytes;
  w.column_input_storage = ColumnInputStorage::shard;
  w.recompute = d.recompute;
  w.wgrad_operand_bytes = 0;
  w.stage = base::Split::even("blocks", task.config.num_hidden_layers, static_cast<int>(d.pp))
                .range(static_cast<int>(stage));
  return w;
}

// The planner adds up blocks of a model of three; plan/memory and plan/peak walk through all of them.
TEST(TrainingPlan, HasTheMemoryOfTheExactTables) {
  const std::pair<const char*, int64_t> models[] = {
      {"llama-3-8b", 8}, {"llama-3.2-1b", 6}, {"gpt2", 5}, {"qwen3-0.6b", 7}, {"mistral-7b", 4}};
  int compared = 0;
  for (const auto& [preset, blocks] : models) {
    for (const int64_t tp : {1, 2, 3, 8}) {
      for (const int64_t pp : {1, 2, 3}) {
        for (const bool sp : {false, true}) {
          for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
            const TrainingTask task = task_of(of_blocks(preset, blocks), tp * pp, /*batch_size=*/6);
            const Degrees d{.tp = tp,
                            .pp = pp,
                            .has_sequence_parallel = sp,
                            .micro_batch_size = 2,
                            .recompute = recompute};
            const TrainingPlan plan = TrainingPlanner(task, built_in_machine("h100")).evaluate(d);
            const Workload workload = on_stage(task, d, plan.peak_stage);
            const ModelStates states = model_states(workload, 0);
            EXPECT_EQ(plan.memory.weights, states.weights);
            EXPECT_EQ(plan.memory.gradients, states.main_gradients);
            EXPECT_EQ(plan.memory.optimizer, states.master_weights + states.optimizer_moments);
            int64_t saved = 0;
            for (int64_t layer = workload.blocks().begin; layer < workload.blocks().end; ++layer)
              saved += total(saved_by_block(workload, 0, layer));
            const int64_t in_flight = std::min<int64_t>(3, pp - plan.peak_stage);
            EXPECT_EQ(plan.memory.activations, in_flight * saved);
            const int64_t exact = training_peak(workload, 0).bytes() + (in_flight - 1) * saved;
            EXPECT_EQ(plan.memory.total(), exact)
                << preset << " tp " << tp << " pp " << pp << " sp " << sp << " recompute " << int(recompute);
            ++compared;
          }
        }
      }
    }
  }
  std::printf("covered: %d plans whose memory is that of the exact tables\n", compared);
}

// 1 + (p − 1)/(pv) of a stage's blocks for p micro-batches, and (p − 1)/(vm) of the step's time.
TEST(TrainingPlan, InterleavingHoldsMoreAndWaitsLess) {
  for (const auto& [p, v, factor] : {std::tuple<int64_t, int64_t, double>{8, 3, 1.2917}, {35, 3, 1.3238}}) {
    Degrees d{.pp = p, .chunks = v};
    EXPECT_NEAR(micro_batches_in_flight(d, 0, 1000) / static_cast<double>(p), factor, 5e-5);
    d.chunks = 1;
    EXPECT_EQ(micro_batches_in_flight(d, 0, 1000), p);
    EXPECT_EQ(micro_batches_in_flight(d, p - 1, 1000), 1);
    EXPECT_EQ(micro_batches_in_flight(d, 0, 3), 3);
  }
  const std::map<std::string, double> bubbles = {{"175B", 0.03646}, {"530B", 0.04048}, {"1T", 0.1230}};
  for (const PublishedGpt& model : published_gpt_models()) {
    if (!bubbles.contains(model.name)) continue;  // one stage
    const TrainingTask task = task_of(config_of(model), model.tp * model.pp, model.batch_size);
    const StepTime time =
        TrainingPlanner(task, built_in_machine("a100"))
            .evaluate({.tp = model.tp, .pp = model.pp, .micro_batch_size = 1, .chunks = model.chunks})
            .time;
    EXPECT_NEAR(time.bubble / (time.compute + time.tensor_parallel), bubbles.at(model.name), 5e-5)
        << model.name;
  }
}

TEST(TrainingPlan, ZeroDividesTheStatesByItsRanks) {
  const TrainingTask task = task_of(config::preset("llama-3.1-8b"), 64, 64);
  TrainingPlanner planner(task, built_in_machine("h100"));
  const auto memory = [&](ZeroStage zero) { return planner.evaluate({.dp = 64, .zero = zero}).memory; };
  const int64_t n = 8'030'261'248;
  const MemoryByClass none = memory(ZeroStage::none), optimizer = memory(ZeroStage::optimizer),
                      gradients = memory(ZeroStage::gradients), weights = memory(ZeroStage::weights);
  EXPECT_EQ(none.weights + none.gradients + none.optimizer, 18 * n);
  EXPECT_EQ(optimizer.weights + optimizer.gradients + optimizer.optimizer, 6 * n + 12 * n / 64);
  EXPECT_EQ(gradients.weights + gradients.gradients + gradients.optimizer, 2 * n + 16 * n / 64);
  EXPECT_EQ(weights.weights + weights.gradients + weights.optimizer, 18 * n / 64);
  // Two blocks' weights are gathered at a time.
  EXPECT_EQ(weights.buffers - gradients.buffers, 2 * 2 * 218'112'000);
  EXPECT_EQ(weights.activations, none.activations);
}

// ZeRO's paper sums 16-bit gradients in 16 bits: 2 + 2 + 12.
TEST(TrainingPlan, GradientsTakeTheBytesOfTheirConvention) {
  TrainingTask task = task_of(config::preset("llama-3.1-8b"), 64, 64);
  task.gradient_bytes = 2;
  TrainingPlanner planner(task, built_in_machine("h100"));
  const auto states = [&](ZeroStage zero) {
    const MemoryByClass memory = planner.evaluate({.dp = 64, .zero = zero}).memory;
    return memory.weights + memory.gradients + memory.optimizer;
  };
  const int64_t n = 8'030'261'248;
  EXPECT_EQ(task.state_bytes().total(), 16);
  EXPECT_EQ(states(ZeroStage::none), 16 * n);
  EXPECT_EQ(states(ZeroStage::optimizer), 4 * n + 12 * n / 64);
  EXPECT_EQ(states(ZeroStage::gradients), 2 * n + 14 * n / 64);
  EXPECT_EQ(states(ZeroStage::weights), 16 * n / 64);
  task.element_bytes = task.gradient_bytes = 4;
  EXPECT_EQ(task.state_bytes().total(), 4 + 4 + 8);
}

// Each collective takes a second, so that the seconds are the calls that communication_test.cpp compares with
// real runs'.
TEST(TrainingPlan, TensorParallelismTakesEveryCollectiveOfTheStep) {
  for (const bool sp : {false, true}) {
    const TrainingTask task = task_of(of_blocks("qwen3-0.6b", 5), 2, 6);
    Machine machine = synthetic_machine(2, 1e12, /*seconds_per_call=*/1);
    const Degrees degrees{.tp = 2, .has_sequence_parallel = sp, .micro_batch_size = 2};
    const TrainingPlan plan = TrainingPlanner(task, machine).evaluate(degrees);
    Workload workload = on_stage(task, degrees, 0);
    workload.column_input_storage = ColumnInputStorage::shard_in_place;
    const auto calls = static_cast<double>(3 * micro_batch_communication(workload, 0).both().total().calls +
                                           optimizer_communication(workload, 0).total().calls);
    EXPECT_NEAR(plan.time.tensor_parallel, calls, 1e-3);
  }
}

TEST(TrainingPlan, StagesThatShareAnEmbeddingSumItsGradient) {
  config::Config tied = of_blocks("llama-3.2-1b", 8), untied = tied;
  untied.tie_word_embeddings = false;
  const Machine machine = built_in_machine("h100");
  for (const int64_t pp : {1, 2, 8}) {
    const auto pipeline = [&](const config::Config& config) {
      return TrainingPlanner(task_of(config, 2 * pp, 8), machine).evaluate({.tp = 2, .pp = pp}).time.pipeline;
    };
    const double sent = 128256.0 / 2 * 2048 * 4;
    const RankGroup ends{.ranks = 2, .stride = pp == 8 ? 14 : 1};  // of 16 ranks, on two nodes
    const double expected = CollectiveTime(machine, ends).all_reduce(sent);
    EXPECT_NEAR(pipeline(tied) - pipeline(untied), pp == 1 ? 0 : expected, 1e-9) << pp;
  }
}

// Full recomputation repeats the forward of the blocks: a third of the model's FLOP without the head.
TEST(TrainingPlan, HardwareComputesTheBlocksAgain) {
  const TrainingTask task = task_of(config::preset("llama-3.1-8b"), 1, 4);
  const auto flop = [&](Recompute recompute) { return step_flop(task, recompute, CountedKeys::all); };
  const double head = 6.0 * 4096 * 128256 * 4 * 1024;
  EXPECT_NEAR(flop(Recompute::full).hardware - flop(Recompute::none).hardware,
              (flop(Recompute::none).model - head) / 3, 1e-9 * head);
  EXPECT_EQ(flop(Recompute::full).model, flop(Recompute::none).model);
  // Half of the products of attention: 12 · layers · 4096 features · 1024 keys a token.
  EXPECT_NEAR(flop(Recompute::none).model - step_flop(task, Recompute::none, CountedKeys::visible).model,
              0.5 * 12 * 32 * 4096 * 1024 * 4 * 1024, 1e6);
}

TEST(TrainingPlan, MoreRanksNeedNoMoreMemoryAndNoStepIsFasterThanTheArithmetic) {
  for (const char* preset : {"llama-3.1-8b", "llama-3.1-70b", "gpt2"}) {
    const TrainingTask task = task_of(config::preset(preset), 1, 8);
    const Machine machine = built_in_machine("h100");
    TrainingPlanner planner(task, machine);
    for (const bool sp : {false, true}) {
      int64_t before = std::numeric_limits<int64_t>::max();
      for (const int64_t tp : {1, 2, 4, 8}) {
        const TrainingPlan plan = planner.evaluate({.tp = tp, .has_sequence_parallel = sp});
        EXPECT_LE(plan.memory.total(), before) << preset << tp;
        before = plan.memory.total();
        // Visible keys are computed: half of attention's products, which is less than a third of the model
        // here.
        EXPECT_GT(plan.time.total(),
                  0.7 * plan.flop.model / (static_cast<double>(tp) * machine.rates(2).flop_per_second.value));
        EXPECT_EQ(plan.time.bubble, 0);
        EXPECT_EQ(plan.time.pipeline, 0);
        EXPECT_EQ(plan.time.data_parallel, 0);
        EXPECT_EQ(plan.time.tensor_parallel > 0, tp > 1);
      }
    }
  }
}

// 8 units of bsh(t − 1)/t without sequence parallelism, 10 with it, whose inputs are gathered again; the
// residual stream of a rank is whole without it.
TEST(TrainingPlan, SequenceParallelismSendsMoreAndHoldsLess) {
  TrainingTask task = task_of(config::preset("llama-3.1-70b"), 8, 8);
  task.sequence_length = 131072;  // so that latencies do not count
  task.overlaps_collectives = false;
  TrainingPlanner planner(task, built_in_machine("h100"));
  const TrainingPlan with = planner.evaluate({.tp = 8}),
                     without = planner.evaluate({.tp = 8, .has_sequence_parallel = false});
  EXPECT_NEAR(with.time.tensor_parallel / without.time.tensor_parallel, 10.0 / 8, 0.01);
  const int64_t layers = 80, tokens = 131072, residual = int64_t{8} * 8192,
                statistics = 8;  // bytes a token: four tensors, two fp32
  EXPECT_EQ(without.memory.activations - with.memory.activations,
            layers * tokens * (residual + statistics) * 7 / 8);
}

}  // namespace
}  // namespace shardwise::plan::training_plan_test
