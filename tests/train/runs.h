// Small training runs for the tests of train/, with ranks as threads.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/train/loop.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

using Scratch = test::TemporaryDirectory;

/// Returns text with regularities that a model can learn.
inline std::string sample_text(size_t bytes = 4000) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i)
    text += "line " + std::to_string(i * i % 97) + " of the text\n";
  return text.substr(0, bytes);
}

/// Returns a small model config for the bytes tokenizer.
inline config::Config small_byte_config() {
  config::Config config = small_config();
  config.vocab_size = 259;
  config.hidden_size = 24;
  config.intermediate_size = 37;
  config.max_position_embeddings = 64;
  return config;
}

/// Returns the config with the layers of GPT-2: a tied head, learned positions, layer norms, biases.
inline config::Config as_gpt2(config::Config config) {
  config.model_type = "gpt2";
  config.norm = config::Norm::layer;
  config.positions = config::Positions::learned;
  config.activation = config::Activation::gelu_tanh;
  config.num_key_value_heads = config.num_attention_heads;
  config.hidden_size = config.num_attention_heads * config.head_dim;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  config.tie_word_embeddings = true;
  return config;
}

/// Returns options for a few steps of the small model on the sample text, without saving.
inline train::TrainOptions small_options(const Scratch& scratch) {
  train::TrainOptions options;
  options.text = {scratch.put("text", sample_text())};
  options.model_config = scratch.put("config.json", config::to_json(small_byte_config()));
  options.seq_len = 11;  // not a multiple of 2 or 3
  options.batch_size = 2;
  options.grad_accum = 2;
  options.steps = 6;
  options.lr = 1e-2;
  options.warmup = 2;
  return options;
}

/// The steps of a run that its test ends.
inline constexpr int kEndless = 1000000;

/// Returns a command that trains the model of `scratch`/config.json on `scratch`/text (small_options writes
/// both) for `steps` steps, with `more` appended.
inline std::vector<std::string> training_command(const Scratch& scratch, int steps,
                                                 const std::vector<std::string>& more) {
  std::vector<std::string> argv = {SHARDWISE_PROGRAM, "train",
                                   "--text",          scratch / "text",
                                   "--model-config",  scratch / "config.json",
                                   "--seq-len",       "11",
                                   "--batch-size",    "2",
                                   "--steps",         std::to_string(steps)};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

/// The results of a run.
struct TestRun {
  std::vector<train::StepRecord> records;  // rank 0's
  train::Summary summary;
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const auto& record : records) losses.push_back(record.loss);
    return losses;
  }
};

/// Called on every rank after each of its steps.
using AfterStep = std::function<void(int rank)>;

/// Makes the group that a rank trains on from one in shared memory.
using MakeGroup = std::function<comm::Group(const comm::Group& shared_memory)>;

/// Calls `body` on the ranks of a run, which are threads.
inline void on_run_ranks(
    const train::TrainOptions& options, const std::function<void(const comm::Mesh&)>& body,
    const MakeGroup& make_group = [](const comm::Group& group) { return group; }) {
  const auto make_mesh = [&](const comm::Group& shared_memory, const comm::Mesh::Connect& connect) {
    const comm::Group world = make_group(shared_memory);
    return train::connect_mesh(options, world.rank(), world.size(),
                               [&](const std::string& name, const std::vector<int>& ranks) {
                                 if (std::ssize(ranks) == world.size()) return world;
                                 if (ranks.size() == 1) return comm::Group(world.device());
                                 return make_group(connect(name, ranks));
                               });
  };
  on_mesh(static_cast<int>(options.ranks()), make_mesh, body);
}

/// Runs a training job with ranks as threads.
inline TestRun run_job(
    const train::TrainOptions& options, const AfterStep& after_step = {},
    const MakeGroup& make_group = [](const comm::Group& group) { return group; }) {
  const train::Job job(options);
  TestRun result;
  on_run_ranks(
      options,
      [&](const comm::Mesh& mesh) {
        const bool is_rank_0 = mesh.rank() == 0;
        const auto summary = train::run(job, mesh, [&](const train::StepRecord& record) {
          if (is_rank_0) result.records.push_back(record);
          if (after_step) after_step(mesh.rank());
        });
        if (is_rank_0) result.summary = summary;
      },
      make_group);
  return result;
}

/// The relative tolerance between fp32 losses of one run at different TP sizes: ten times the effect of
/// changing every weight's last bit before each step, which is 1e-7 for these runs (as in runs/curves_test).
inline constexpr double kRounding = 1e-6;

/// Checks that all losses are within `tolerance`, relative to the reference.
inline void expect_close(const std::vector<double>& losses, const std::vector<double>& reference,
                         double tolerance = kRounding) {
  ASSERT_EQ(losses.size(), reference.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference[i], tolerance * reference[i]) << "step " << i + 1;
  }
}

}  // namespace shardwise::testing
