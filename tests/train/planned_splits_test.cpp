// Every split that the planner calls legal, of the axes that this build has, trains and has the losses of one
// rank.
#include <cstdio>

#include "shardwise/plan/search.h"
#include "tests/train/runs.h"

namespace shardwise::train::planned_splits_test {
namespace {

constexpr int64_t kBatch = 4, kTokens = 11;

config::Config small_model(const std::string& preset) {
  const config::Config small = testing::small_byte_config();
  config::Config config = config::preset(preset);
  config.vocab_size = small.vocab_size;
  config.num_hidden_layers = small.num_hidden_layers;
  config.num_attention_heads = small.num_attention_heads;
  config.num_key_value_heads =
      config.model_type == "gpt2" ? small.num_attention_heads : small.num_key_value_heads;
  config.head_dim = small.head_dim;
  config.hidden_size = small.hidden_size;
  config.intermediate_size = small.intermediate_size;
  config.max_position_embeddings = small.max_position_embeddings;
  if (config.sliding_window) config.sliding_window = 5;
  config.bos_token_id.reset();
  config.eos_token_id.clear();
  return config;
}

/// Returns the degrees of every plan of a step on `ranks` ranks of one process group.
std::vector<plan::Degrees> legal_splits(const config::Config& config, int64_t ranks) {
  plan::Machine machine = plan::built_in_machine("h100");
  machine.shares_memory = true;
  plan::Pins pins;
  pins.pp = pins.dp = pins.cp = 1;
  const plan::TrainingTask task{
      .config = config, .ranks = ranks, .sequence_length = kTokens, .batch_size = kBatch, .element_bytes = 4};
  std::vector<plan::Degrees> splits;
  for (const plan::TrainingPlan& plan : search(task, machine, pins, {}).plans) splits.push_back(plan.degrees);
  return splits;
}

testing::TestRun run_split(const testing::Scratch& scratch, const plan::Degrees& degrees) {
  TrainOptions options = testing::small_options(scratch);
  options.model_config = scratch / "model.json";
  options.seq_len = kTokens;
  options.steps = 2;
  options.warmup = 2;
  options.tp = degrees.tp;
  options.sequence_parallel = degrees.has_sequence_parallel;
  options.batch_size = degrees.micro_batch_size;
  options.grad_accum = degrees.micro_batches(kBatch);
  options.recompute = name_of(degrees.recompute);
  return testing::run_job(options);
}

TEST(PlannedSplits, TrainWithTheLossesOfOneRank) {
  int compared = 0;
  for (const char* preset :
       {"llama-3-8b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "phi-3-mini", "gpt2"}) {
    const config::Config config = small_model(preset);
    const testing::Scratch scratch;
    scratch.put("model.json", config::to_json(config));
    std::vector<double> reference;
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      const std::vector<plan::Degrees> splits = legal_splits(config, ranks);
      EXPECT_EQ(splits.size(), ranks == 1 ? 9u : 18u);  // micro-batches of 1, 2, 4; recompute; TP and TP+SP
      for (const plan::Degrees& degrees : splits) {
        SCOPED_TRACE(std::string(preset) + " tp " + std::to_string(degrees.tp) + " micro-batch " +
                     std::to_string(degrees.micro_batch_size));
        const std::vector<double> losses = run_split(scratch, degrees).losses();
        if (reference.empty()) reference = losses;
        testing::expect_close(losses, reference);
        ++compared;
      }
    }
  }
  std::printf("covered: %d planned splits that train\n", compared);
}

}  // namespace
}  // namespace shardwise::train::planned_splits_test
