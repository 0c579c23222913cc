// Full runs of the doctor on small models. tests/mutation/run runs the first test with every fault: it must
// fail, except for the faults that faults.md lists as not detected.
#include "shardwise/doctor/run_doctor.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/checkpoint.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"
#include "tests/support/small_config.h"

namespace shardwise::doctor::run_doctor_test {
namespace {

using Load = std::function<void(model::DecoderWeights&)>;

/// A small model: its number of ranks, and what distinguishes its family.
struct Kind {
  const char* name;
  int ranks;
  int64_t positions;  // even shards, which do not reveal swapped ranks, and uneven ones
  at::ScalarType dtype;
  void (*configure)(config::Config&);
};

void set_biases(config::Config& config) {
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
}

const Kind kKinds[] = {
    {"6 over 3 heads with biases", 2, 12, at::kBFloat16, set_biases},
    {"6 over 2 heads, q/k norm, tied head, window", 3, 11, at::kFloat,
     [](config::Config& config) {
       config.model_type = "qwen3";
       config.num_key_value_heads = 2;
       config.qk_norm = config.tie_word_embeddings = true;
       config.sliding_window = 5;
     }},
    {"LayerNorm, GeLU, learned positions, biases, tied head", 2, 11, at::kFloat,
     [](config::Config& config) {
       config.model_type = "gpt2";
       set_biases(config);
       config.num_key_value_heads = 6;
       config.norm = config::Norm::layer;
       config.activation = config::Activation::gelu_tanh;
       config.positions = config::Positions::learned;
       config.tie_word_embeddings = true;
     }},
};

config::Config config_of(const Kind& kind) {
  config::Config config = testing::small_config();
  config.initializer_range = 0.3;
  kind.configure(config);
  config::validate(config);
  return config;
}

Load random_weights() {
  return [](model::DecoderWeights& weights) {
    weights.initialize_(/*seed=*/3);
    randomize_1d_parameters_(weights, /*seed=*/3);
  };
}

RunOptions options_of(const config::Config& config, const std::string& directory, int64_t positions = 11) {
  at::manual_seed(5);
  const at::Tensor ids = at::randint(config.vocab_size, {positions + 1, 2}, at::kLong);
  return {{ids.narrow(0, 0, positions).contiguous(), ids.narrow(0, 1, positions).contiguous()},
          /*seed=*/9,
          directory};
}

Report run_doctor_on(int ranks, const Target& target, int64_t positions = 11) {
  const test::TemporaryDirectory directory;
  const RunOptions options = options_of(target.config, directory.path(), positions);
  Report report;
  testing::on_parts(ranks, [&](const comm::Group& group, const comm::Mesh::Connect& connect) {
    RunOptions of_rank = options;
    of_rank.connect = connect;
    Report local = run_doctor(target, of_rank, group);
    if (group.rank() == 0) report = std::move(local);
  });
  return report;
}

void expect_no_bug(int ranks, const Target& target, const std::string& name, int64_t positions = 11) {
  const Report report = run_doctor_on(ranks, target, positions);
  const auto bug = report.bug_summary();
  EXPECT_FALSE(bug) << name << ": " << *bug;
  EXPECT_EQ(report.passed, !bug);
}

/// Writes a Hugging Face model directory without using the code under test.
void put_model(const test::TemporaryDirectory& directory, const config::Config& config) {
  testing::StoredTensors stored;
  for (const auto& [name, tensor] : testing::random_weights(config, /*seed=*/4, at::kFloat)) {
    const at::Tensor dense = tensor.detach().contiguous();
    stored[name] = {
        "F32", dense.sizes().vec(), {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}};
  }
  directory.put("config.json", config::to_json(config));
  directory.put("model.safetensors", testing::safetensors_of(stored));
}

/// Random weights, and weights loaded from files.
TEST(Doctor, FindsNoBugInCorrectModels) {
  for (const Kind& kind : kKinds) {
    expect_no_bug(kind.ranks, {config_of(kind), kind.dtype, random_weights()}, kind.name, kind.positions);
    if (HasFailure()) return;
  }
  const test::TemporaryDirectory directory;
  const config::Config config = testing::small_config();
  put_model(directory, config);
  const auto load = [&](model::DecoderWeights& weights) {
    checkpoint::load_weights(directory.path(), weights);
  };
  expect_no_bug(2, {config, at::kFloat, load}, "from files");
}

/// Four query heads on four ranks, one replicated KV head, and fewer rows than ranks.
TEST(Doctor, FindsNoBugWithEmptyShards) {
  config::Config config = testing::small_config();
  config.num_attention_heads = 4;
  config.num_key_value_heads = 1;
  config.intermediate_size = 3;
  config.vocab_size = 3;
  expect_no_bug(4, {config, at::kFloat, random_weights()}, "empty shards");
}

/// One rank's shard of one weight is wrong: the check of the weights names the weight, the comparison its
/// layer.
TEST(Doctor, NamesTheWeightThatDiffersOnOneRank) {
  const Load load = [](model::DecoderWeights& weights) {
    random_weights()(weights);
    for (const nn::UsedParameter& used : weights.used_parameters()) {
      const bool is_it = used.parameter->name == "model.layers.1.self_attn.o_proj.weight";
      if (is_it && weights.group().rank() == 1) used.parameter->value.detach()[0][0] += 0.5;
    }
  };
  const Report report = run_doctor_on(2, {testing::small_config(), at::kFloat, load});
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.bug_summary(),
            "bug in the weights: model.layers.1.self_attn.o_proj.weight differs from TP=1");
  for (const Comparison& comparison : report.comparisons) {
    ASSERT_NE(comparison.first_bug(), nullptr) << comparison.name();
    const bool is_recomputed = comparison.run_config.recompute == plan::Recompute::full;
    EXPECT_EQ(comparison.first_bug()->label,
              (Label{"layer 1", is_recomputed ? "output" : "attention output"}))
        << comparison.name();
  }
}

/// One rank's replica of a norm weight is wrong.
TEST(Doctor, NamesTheReplicaThatDiffers) {
  const Load load = [](model::DecoderWeights& weights) {
    random_weights()(weights);
    for (const nn::UsedParameter& used : weights.used_parameters())
      if (used.parameter->name == "model.norm.weight" && weights.group().rank() == 1)
        used.parameter->value.detach()[0] += 0.5;
  };
  const Report report = run_doctor_on(2, {testing::small_config(), at::kFloat, load});
  EXPECT_EQ(report.bug_summary(), "bug in the weights: model.norm.weight differs from TP=1 on 1 ranks");
}

TEST(Doctor, RejectsAGroupOfOne) {
  const Target target{testing::small_config(), at::kFloat, random_weights()};
  EXPECT_PRED2(test::contains,
               test::error_text([&] { run_doctor(target, options_of(target.config, ""), comm::Group()); }),
               "doctor: the group must have at least 2 ranks to compare with TP=1; got 1");
}

}  // namespace
}  // namespace shardwise::doctor::run_doctor_test
