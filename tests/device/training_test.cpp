// Training on the emulated device gives the losses of training on the CPU, waits for the device once a step,
// and launches as many kernels as docs/gpu-kernels.md says.
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/train/finite.h"
#include "shardwise/train/trainer.h"
#include "tests/device/device.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::device_test {
namespace {

using testing::Scratch;
using train::TrainOptions;

/// The kernels that a micro-batch launches in the 2 layers, and outside of them.
struct Launches {
  int64_t layers, rest;
};

/// A run, how far its losses may be from the CPU's, relatively, and its launches.
struct TrainedCase {
  std::string name;
  std::function<void(config::Config&)> change_model;
  std::function<void(TrainOptions&)> change;
  double tolerance;
  Launches launches;
};

void llama(config::Config& config) {
  config.head_dim = 8;
}
void gpt2(config::Config& config) {
  config = config::preset("gpt2");
  config.vocab_size = 259;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
}
void qwen3(config::Config& config) {
  llama(config);
  config.model_type = "qwen3";
  config.qk_norm = true;
}

/// fp32 sums in another order, and the GPU's approximate exp and reciprocal, change the last bits of every
/// value; bf16 rounds them.
constexpr double kFp32 = 1e-5, kBf16 = 1e-2;

/// Forward: 2 norms, heads, activation. Backward: 2 norms with 1 sum each, heads, activation. Rest:
/// embedding, its gradient (2), the last norm with its backward (3), the loss (3).
constexpr Launches kLlama{2 * (4 + 6), 9};
/// Backward has a second sum for each norm, of biases, and one for the activation's bias. Rest: also the
/// gradient of positions (2), and the sum of the last norm's bias.
constexpr Launches kGpt2{2 * (4 + 9), 12};
/// Backward normalizes the heads again, and has 2 sums for their weights.
constexpr Launches kQwen3{2 * (4 + 9), 9};

std::vector<TrainedCase> cases() {
  return {
      {"llama", llama, [](TrainOptions&) {}, kFp32, kLlama},
      {"gpt2", gpt2, [](TrainOptions&) {}, kFp32, kGpt2},
      {"qwen3", qwen3, [](TrainOptions&) {}, kFp32, kQwen3},
      {"llama_bf16", llama, [](TrainOptions& o) { o.dtype = "bf16"; }, kBf16, kLlama},
      {"gpt2_bf16", gpt2, [](TrainOptions& o) { o.dtype = "bf16"; }, kBf16, kGpt2},
      {"gpt2_dropout",
       gpt2,
       [](TrainOptions& o) {
         o.dropout = 0.1;
         o.attention_dropout = 0.2;
       },
       kFp32,
       {kGpt2.layers + 2 * 6, kGpt2.rest + 2}},
      {"llama_loss_options", llama,
       [](TrainOptions& o) {
         o.label_smoothing = 0.1;
         o.z_loss = 1e-3;
         o.clip_grad = 0.0;
       },
       kFp32, kLlama},
      {"llama_recompute",
       llama,
       [](TrainOptions& o) { o.recompute = "full"; },
       kFp32,
       {kLlama.layers + 2 * 4, kLlama.rest}},
      // Without the backward of the first layer and of the embedding.
      {"qwen3_frozen",
       qwen3,
       [](TrainOptions& o) {
         o.freeze = {"model.layers.0.*", "model.embed*"};
       },
       kFp32,
       {kQwen3.layers - 9, kQwen3.rest - 2}},
  };
}

/// Writes the model of `one` and returns the options of its training.
TrainOptions options_of(const TrainedCase& one, const Scratch& scratch) {
  TrainOptions options = testing::small_options(scratch);
  options.steps = 4;
  config::Config config = testing::small_byte_config();
  one.change_model(config);
  options.model_config = scratch.put("config.json", config::to_json(config));
  one.change(options);
  return options;
}

/// What the device did up to the end of a step.
struct Done {
  int64_t reads = testing::emulated_reads(), launches = testing::emulated_launches();
};

struct DeviceRun {
  std::vector<double> losses;
  std::vector<Done> done;  // after each step
};

DeviceRun train_on_device(const TrainOptions& options) {
  DeviceRun run;
  run.losses = testing::run_job(
                   options, [&](int) { run.done.emplace_back(); },
                   [](const comm::Group& group) { return testing::on_device(group); })
                   .losses();
  return run;
}

class TrainingOnDevice : public ::testing::TestWithParam<TrainedCase> {};

TEST_P(TrainingOnDevice, IsThatOfTheCpuAndWaitsOnceAStep) {
  const Scratch scratch;
  const TrainedCase& one = GetParam();
  const TrainOptions options = options_of(one, scratch);
  const DeviceRun run = train_on_device(options);
  testing::expect_close(run.losses, testing::run_job(options).losses(), one.tolerance);
  if (!testing::is_emulated()) return;
  // The norm of the gradients (2), the scale that clips them, and AdamW.
  const int64_t expected = options.grad_accum * (one.launches.layers + one.launches.rest) + 4;
  for (size_t step = 1; step < run.done.size(); ++step) {
    EXPECT_EQ(run.done[step].reads - run.done[step - 1].reads, 1) << "step " << step + 1;
    EXPECT_EQ(run.done[step].launches - run.done[step - 1].launches, expected) << "step " << step + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainingOnDevice, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// The optimizer is queued before the host knows.
TEST(StepOnDevice, ThatIsNotFiniteChangesNoWeight) {
  const Scratch scratch;
  const train::Job job(options_of(cases()[0], scratch));
  train::Trainer trainer(job, train::one_replica(testing::on_device()));
  trainer.step();
  const auto& used = trainer.weights().used_parameters();
  const auto weights = [&] {
    std::vector<at::Tensor> copies;
    for (const nn::UsedParameter& one : used) copies.push_back(one.parameter->value.detach().cpu());
    return copies;
  };
  const std::vector<at::Tensor> before = weights();
  const auto break_gradient = [&] { used[3].parameter->main_grad.view(-1)[1].fill_(NAN); };
  break_gradient();  // the step adds to it
  const std::string error = test::error_text<train::NotFiniteError>([&] { trainer.step(); });
  EXPECT_PRED2(test::contains, error, "in the gradient of " + used[3].parameter->name + " on rank 0");
  const std::vector<at::Tensor> after = weights();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(before[i].equal(after[i])) << used[i].parameter->name;
    EXPECT_EQ(used[i].parameter->main_grad.abs().max().item<double>(), 0) << used[i].parameter->name;
  }
}

}  // namespace
}  // namespace shardwise::device_test
