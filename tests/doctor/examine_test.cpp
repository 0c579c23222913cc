// Whole examinations of small models. The first test is also what tests/mutation/run runs under every fault:
// it must then fail, but for the faults that faults.md says the doctor cannot see.
#include "shardwise/doctor/examine.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/vectors.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"
#include "tests/support/small_config.h"

namespace shardwise::doctor::examine_test {
namespace {

using Load = std::function<void(model::DecoderWeights&)>;

/// A model in small: its number of ranks, and what sets its family apart.
struct Kind {
  const char* name;
  int ranks;
  int64_t positions;  // even shards, where a rank's fits in another's place, and uneven ones
  at::ScalarType dtype;
  void (*set)(model::Config&);
};

void set_biases(model::Config& config) {
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
}

const Kind kKinds[] = {
    {"6 over 3 heads with biases", 2, 12, at::kBFloat16, set_biases},
    {"6 over 2 heads, q/k norm, tied head, window", 3, 11, at::kFloat,
     [](model::Config& config) {
       config.model_type = "qwen3";
       config.num_key_value_heads = 2;
       config.qk_norm = config.tie_word_embeddings = true;
       config.sliding_window = 5;
     }},
    {"LayerNorm, GeLU, learned positions, biases, tied head", 2, 11, at::kFloat,
     [](model::Config& config) {
       config.model_type = "gpt2";
       set_biases(config);
       config.num_key_value_heads = 6;
       config.norm = model::Norm::layer;
       config.activation = model::Activation::gelu_tanh;
       config.positions = model::Positions::learned;
       config.tie_word_embeddings = true;
     }},
};

model::Config config_of(const Kind& kind) {
  model::Config config = testing::small_config();
  config.initializer_range = 0.3;
  kind.set(config);
  model::validate(config);
  return config;
}

Load drawn() {
  return [](model::DecoderWeights& weights) {
    weights.initialize_(/*seed=*/3);
    draw_vectors_(weights, /*seed=*/3);
  };
}

Examination examination_of(const model::Config& config, const std::string& directory,
                           int64_t positions = 11) {
  at::manual_seed(5);
  const at::Tensor ids = at::randint(config.vocab_size, {positions + 1, 2}, at::kLong);
  return {{ids.narrow(0, 0, positions).contiguous(), ids.narrow(0, 1, positions).contiguous()},
          /*seed=*/9,
          directory};
}

Report examine_on(int ranks, const Subject& subject, int64_t positions = 11) {
  const test::TemporaryDirectory directory;
  const Examination examination = examination_of(subject.config, directory.path(), positions);
  Report report;
  testing::on_ranks(ranks, [&](const comm::Group& group) {
    Report own = examine(subject, examination, group);
    if (group.rank() == 0) report = std::move(own);
  });
  return report;
}

void expect_sound(int ranks, const Subject& subject, const std::string& name, int64_t positions = 11) {
  const Report report = examine_on(ranks, subject, positions);
  const auto finding = report.finding();
  EXPECT_FALSE(finding) << name << ": " << *finding;
  EXPECT_EQ(report.holds, !finding);
}

/// A model of these weights in Hugging Face's form, written without the code under test.
void put_model(const test::TemporaryDirectory& directory, const model::Config& config) {
  testing::StoredTensors stored;
  for (const auto& [name, tensor] : testing::random_weights(config, /*seed=*/4, at::kFloat)) {
    const at::Tensor dense = tensor.detach().contiguous();
    stored[name] = {
        "F32", dense.sizes().vec(), {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}};
  }
  directory.put("config.json", model::to_json(config));
  directory.put("model.safetensors", testing::safetensors_of(stored));
}

/// Drawn and read from files.
TEST(Examine, FindsNothingInSoundModels) {
  for (const Kind& kind : kKinds) {
    expect_sound(kind.ranks, {config_of(kind), kind.dtype, drawn()}, kind.name, kind.positions);
    if (HasFailure()) return;
  }
  const test::TemporaryDirectory directory;
  const model::Config config = testing::small_config();
  put_model(directory, config);
  const auto load = [&](model::DecoderWeights& weights) {
    checkpoint::load_weights(directory.path(), weights);
  };
  expect_sound(2, {config, at::kFloat, load}, "from files");
}

/// Of a model with four query heads on four ranks, one KV head that all hold, and fewer rows than ranks.
TEST(Examine, FindsNothingWhereRanksAreEmpty) {
  model::Config config = testing::small_config();
  config.num_attention_heads = 4;
  config.num_key_value_heads = 1;
  config.intermediate_size = 3;
  config.vocab_size = 3;
  expect_sound(4, {config, at::kFloat, drawn()}, "empty shards");
}

/// One rank's slice of one weight is another: the weights' audit names it, and the comparison its place.
TEST(Examine, NamesTheWeightThatOneRankHasOtherwise) {
  const Load load = [](model::DecoderWeights& weights) {
    drawn()(weights);
    for (const nn::UsedParameter& role : weights.roles()) {
      const bool is_it = role.parameter->name == "model.layers.1.self_attn.o_proj.weight";
      if (is_it && weights.group().rank() == 1) role.parameter->value.detach()[0][0] += 0.5;
    }
  };
  const Report report = examine_on(2, {testing::small_config(), at::kFloat, load});
  EXPECT_FALSE(report.holds);
  EXPECT_EQ(report.finding(),
            "bug in the weights: model.layers.1.self_attn.o_proj.weight is another than at TP=1");
  for (const Comparison& comparison : report.comparisons) {
    ASSERT_NE(comparison.first_bug(), nullptr) << comparison.name();
    const bool is_whole_block = comparison.way.recompute == plan::Recompute::full;
    EXPECT_EQ(comparison.first_bug()->label,
              (Label{"layer 1", is_whole_block ? "output" : "attention output"}))
        << comparison.name();
  }
}

/// Replicas that part: a norm weight of one rank.
TEST(Examine, NamesTheReplicaThatDiffers) {
  const Load load = [](model::DecoderWeights& weights) {
    drawn()(weights);
    for (const nn::UsedParameter& role : weights.roles())
      if (role.parameter->name == "model.norm.weight" && weights.group().rank() == 1)
        role.parameter->value.detach()[0] += 0.5;
  };
  const Report report = examine_on(2, {testing::small_config(), at::kFloat, load});
  EXPECT_EQ(report.finding(), "bug in the weights: model.norm.weight is another than at TP=1, on 1 ranks");
}

TEST(Examine, RefusesAGroupOfOne) {
  const Subject subject{testing::small_config(), at::kFloat, drawn()};
  EXPECT_PRED2(test::contains,
               test::error_text([&] { examine(subject, examination_of(subject.config, ""), comm::Group()); }),
               "doctor: TP=1 is compared with at least 2 ranks; got 1");
}

}  // namespace
}  // namespace shardwise::doctor::examine_test
