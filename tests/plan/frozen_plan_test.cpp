// Plans with frozen parameters, stage by stage, against what the whole model on one stage has, whose saved
// tensors, states and peaks other tests compare with runs (peak_test.cpp, saved_bytes_test.cpp); and closed
// forms.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "shardwise/config/freeze.h"
#include "shardwise/plan/block_kind.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/training_plan.h"
#include "tests/plan/synthetic_machine.h"
#include "tests/support/error_text.h"

namespace shardwise::plan::frozen_plan_test {
namespace {

using Globs = std::vector<std::string>;

struct FrozenModel {
  const char* preset;
  Globs globs;
};

/// Embedding alone; blocks at the beginning, in the middle, at the end, and all; layers of every block.
const std::vector<FrozenModel> kModels = {
    {"llama-3-8b", {"model.embed_tokens.*"}},
    {"llama-3-8b", {"model.embed_tokens.*", "model.layers.[0-9].*"}},
    {"llama-3-8b", {"model.layers.1[0-9].*"}},
    {"llama-3-8b", {"model.layers.3[01].*", "model.norm.weight", "lm_head.weight"}},
    {"llama-3-8b", {"model.embed_tokens.*", "model.layers.*"}},
    {"llama-3-8b", {"model.embed_tokens.*", "model.layers.*", "model.norm.weight"}},
    {"llama-3-8b", {"*.mlp.*"}},
    {"llama-3-8b", {"*.self_attn.*", "*norm*"}},
    {"llama-3.2-1b", {"model.embed_tokens.*"}},
    {"qwen3-0.6b", {"model.embed_tokens.*", "model.layers.[0-9].*"}},
    {"gpt2", {"*.mlp.*"}},
    {"gpt2", {"*wte*", "*wpe*", "*.h.[0-5].*"}},
};

TrainingTask task_of(const FrozenModel& model) {
  TrainingTask task{.config = config::preset(model.preset), .sequence_length = 512, .batch_size = 8};
  task.frozen = {task.config, config::frozen_by("test", model.globs, task.config).parameters};
  return task;
}

Workload whole(const TrainingTask& task, int tp, Recompute recompute) {
  Workload workload;
  workload.config = task.config;
  workload.tp = tp;
  workload.sequence_length = task.sequence_length;
  workload.batch_size = 1;
  workload.element_bytes = task.element_bytes;
  workload.recompute = recompute;
  workload.frozen = task.frozen;
  return workload;
}

/// Calls f for every model, tp 1, 2 and 4, and mode of recomputation.
template <class F>
void for_plans(const F& f) {
  for (const FrozenModel& model : kModels) {
    for (const int tp : {1, 2, 4}) {
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        SCOPED_TRACE(std::string(model.preset) + " without " + model.globs.front() + ", tp " +
                     std::to_string(tp) + ", " + base::name_of(recompute));
        f(task_of(model), tp, recompute);
      }
    }
  }
}

Degrees degrees_of(int tp, Recompute recompute) {
  Degrees degrees;
  degrees.tp = tp;
  degrees.recompute = recompute;
  return degrees;
}

TrainingPlanner planner_of(const TrainingTask& task, int64_t ranks) {
  return TrainingPlanner(task, synthetic_machine(ranks, 1e12, 1e-6));
}

TEST(FrozenPlan, HasTheStatesAndSavedTensorsOfTheWholeModel) {
  for_plans([](const TrainingTask& task, int tp, Recompute recompute) {
    const Workload workload = whole(task, tp, recompute);
    const MemoryByClass memory = planner_of(task, tp).evaluate(degrees_of(tp, recompute)).memory;
    const ModelStates states = model_states(workload, 0);
    EXPECT_EQ(memory.weights, states.weights);
    EXPECT_EQ(memory.gradients, states.main_gradients);
    EXPECT_EQ(memory.optimizer, states.master_weights + states.optimizer_moments);
    int64_t saved = 0;
    for (int64_t layer = 0; layer < task.config.num_hidden_layers; ++layer)
      saved += total(saved_by_block(workload, 0, layer));
    EXPECT_EQ(memory.activations, saved);
  });
}

TEST(FrozenPlan, HasTheFlopOfTheWholeModel) {
  for_plans([](const TrainingTask& task, int tp, Recompute recompute) {
    if (tp > 1) return;  // the FLOP of a step are of all ranks
    const StepFlop planned = step_flop(task, recompute, CountedKeys::all);
    const StepFlop all = flop_of(micro_batch_operations(whole(task, 1, recompute), 0, CountedKeys::all));
    const auto sequences = static_cast<double>(task.batch_size);
    EXPECT_DOUBLE_EQ(planned.model, sequences * all.model);
    EXPECT_DOUBLE_EQ(planned.hardware, sequences * all.hardware);
  });
}

/// Of a multiplication with every weight but the embedding's.
double forward_flop(const TrainingTask& task) {
  double sum = 0;
  for (const Operation& one : micro_batch_operations(whole(task, 1, Recompute::none), 0, CountedKeys::all))
    sum += one.forward.flop;
  return static_cast<double>(task.batch_size) * sum;
}

// Only the head is trained: one forward, and the gradient of the head, 2·tokens·hidden·vocab.
TEST(FrozenPlan, OfTheHeadAloneIsAForwardAndOneGradient) {
  const TrainingTask task =
      task_of({"llama-3-8b", {"model.embed_tokens.*", "model.layers.*", "model.norm.weight"}});
  const double head = 2.0 * 8 * 512 * 4096 * 128256;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    const StepFlop flop = step_flop(task, recompute, CountedKeys::all);
    EXPECT_DOUBLE_EQ(flop.model, forward_flop(task) + head);
    EXPECT_DOUBLE_EQ(flop.hardware, flop.model);
  }
  const TrainingPlan plan = planner_of(task, 1).evaluate({});
  EXPECT_EQ(plan.memory.activations, 0);
  EXPECT_EQ(plan.memory.gradients, int64_t{4} * 4096 * 128256);
  EXPECT_EQ(plan.memory.optimizer, int64_t{12} * 4096 * 128256);
}

// Only the embedding is trained: every product has the gradient of its input, none that of its weight.
TEST(FrozenPlan, OfTheEmbeddingAloneHasNoWeightGradients) {
  const TrainingTask task =
      task_of({"llama-3-8b", {"model.layers.*", "model.norm.weight", "lm_head.weight"}});
  const Workload workload = whole(task, 1, Recompute::none);
  for (const Operation& one : micro_batch_operations(workload, 0, CountedKeys::all)) {
    EXPECT_EQ(one.weight_gradient.flop, 0) << one.name;
    if (one.kind != Operation::Kind::product) continue;
    EXPECT_EQ(one.input_gradient.flop, one.forward.flop) << one.name;
  }
}

TEST(FrozenPlan, StagesShareTheStatesOfTheModel) {
  for (const FrozenModel& model : kModels) {
    const TrainingTask task = task_of(model);
    const Workload workload = whole(task, 2, Recompute::none);
    const Machine machine = synthetic_machine(64, 1e12, 1e-6);
    OneBlockStages stages;
    const MicroBatchCosts costs(workload, stage_buffers(workload, stages), machine, stages);
    const int64_t blocks = task.config.num_hidden_layers;
    const LayerCosts all = costs.of_stage({0, blocks});
    for (const int64_t size : {int64_t{1}, blocks / 4, blocks / 2}) {
      LayerCosts sum;
      for (int64_t begin = 0; begin < blocks; begin += size) sum += costs.of_stage({begin, begin + size});
      EXPECT_EQ(sum.trained_parameters, all.trained_parameters + costs.trained_tied_parameters())
          << model.preset;
      EXPECT_EQ(sum.saved_bytes, all.saved_bytes) << model.preset;
      EXPECT_NEAR(sum.backward, all.backward, 1e-9 * all.backward) << model.preset;
    }
  }
}

// A frozen block before the first trained one gets no gradient from the stage behind it.
TEST(FrozenPlan, GradientsAreSentToTrainedStagesOnly) {
  const TrainingTask task = task_of({"llama-3-8b", {"model.embed_tokens.*", "model.layers.[0-9].*"}});
  const Workload workload = whole(task, 1, Recompute::none);
  OneBlockStages stages;
  const MicroBatchCosts costs(workload, stage_buffers(workload, stages), synthetic_machine(1, 1e12, 1e-6),
                              stages);
  EXPECT_FALSE(costs.sends_gradients({0, 8}));
  EXPECT_FALSE(costs.sends_gradients({8, 16}));  // blocks 8 and 9 are frozen
  EXPECT_TRUE(costs.sends_gradients({16, 24}));
  EXPECT_TRUE(costs.sends_gradients({24, 32}));
}

TEST(FrozenPlan, NeverTakesMoreThanTheSplitThatTrainsAll) {
  for (const FrozenModel& model : kModels) {
    const TrainingTask frozen = task_of(model);
    TrainingTask all = frozen;
    all.frozen = {};
    TrainingPlanner of_frozen = planner_of(frozen, 64), of_all = planner_of(all, 64);
    for (const ZeroStage zero :
         {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::weights}) {
      for (const auto& [tp, pp, dp] : {std::tuple{1, 1, 1}, {2, 2, 1}, {4, 2, 4}, {1, 4, 2}}) {
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          Degrees degrees = degrees_of(tp, recompute);
          degrees.pp = pp;
          degrees.dp = dp;
          degrees.zero = zero;
          const TrainingPlan less = of_frozen.evaluate(degrees), more = of_all.evaluate(degrees);
          // The peak may be taken in a frozen block, which saves less of what is live in it.
          const int64_t saved_by_one = more.memory.activations * pp / frozen.config.num_hidden_layers;
          EXPECT_LE(less.memory.total(), more.memory.total() + saved_by_one)
              << model.preset << " " << model.globs.front();
          if (pp == 1) {
            EXPECT_LT(less.memory.total(), more.memory.total()) << model.preset;
          }
          EXPECT_LE(less.time.total(), more.time.total()) << model.preset << " " << model.globs.front();
          EXPECT_LE(less.flop.hardware, more.flop.hardware) << model.preset << " " << model.globs.front();
        }
      }
    }
  }
}

TEST(FrozenPlan, NeedsAModelWhoseTensorsHaveNames) {
  const auto freeze = [] { config::frozen_by("plan", {"*"}, config::preset_to_plan("deepseek-v3")); };
  EXPECT_EQ(test::error_text(freeze),
            "plan: --freeze needs a model that this build can run; got deepseek_v3");
}

}  // namespace
}  // namespace shardwise::plan::frozen_plan_test
