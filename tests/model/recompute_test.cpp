// Recomputation does not change a bit of a training step, for every mode, residual stream type, path, dtype
// and number of ranks.
#include "shardwise/base/recompute.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>

#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::recompute_test {
namespace {

using base::Recompute;

struct Kind {
  const char* name;
  void (*set)(config::Config&);
};

const Kind kKinds[] = {
    {"gated", [](config::Config& config) { config.qkv_bias = true; }},
    {"q/k norm", [](config::Config& config) { config.qk_norm = true; }},
    {"GPT-2",
     [](config::Config& config) {
       config.num_key_value_heads = 6;
       config.norm = config::Norm::layer;
       config.activation = config::Activation::gelu_tanh;
       config.positions = config::Positions::learned;
       config.qkv_bias = config.attention_out_bias = config.mlp_bias = config.tie_word_embeddings = true;
     }},
};

config::Config config_of(const Kind& kind) {
  config::Config config = small_config();
  config.num_hidden_layers = 3;
  kind.set(config);
  return config;
}

struct Variant {
  config::Config config;
  at::ScalarType dtype;
  Stream stream;
  Path path;
  int64_t sequence;
  double dropout;
  bool (*is_frozen)(const std::string& parameter);
};

bool nothing(const std::string&) {
  return false;
}
/// With these frozen the first block's input needs no gradient.
bool embeddings(const std::string& name) {
  return name.find("embed") != std::string::npos;
}
/// Freezes one block above and one below the only trained block.
bool all_but_block_1(const std::string& name) {
  return name.find("layers.1.") == std::string::npos;
}

/// Returns the loss and this rank's gradients.
std::vector<at::Tensor> results(const Variant& run, Recompute recompute, const comm::Group& group) {
  model::DecoderWeights weights(run.config, group, run.dtype);
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (run.is_frozen(used.parameter->name)) parallel::freeze_(*used.parameter);
  }
  weights.initialize_(1);
  zero_gradients_(weights);
  const Batch batch = random_batch(run.config, run.sequence, /*batch=*/2, 1);
  nn::Step step = make_step(group, run.path, run.sequence, kernels::RandomKey::of(1), run.dropout);
  step.recompute = recompute;
  step.attention_dropout = run.dropout;
  const auto loss = [&](const auto& model) {
    return model.loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  };
  const at::Tensor value = run.stream == Stream::tp
                               ? loss(model::Decoder<nn::Invariant>(weights))
                               : loss(model::Decoder<nn::Sharded<nn::kSequence>>(weights));
  std::vector<at::Tensor> results = {value.detach()};
  value.backward();
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (!used.parameter->is_frozen()) results.push_back(used.parameter->main_grad);
  }
  return results;
}

void expect_same_bits(const Variant& run, const comm::Group& group) {
  const auto expected = results(run, Recompute::none, group);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    const auto actual = results(run, recompute, group);
    ASSERT_EQ(actual.size(), expected.size());
    double gradients = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(same_bits(actual[i], expected[i]))
          << "mode " << static_cast<int>(recompute) << ", result " << i;
      if (i > 0) gradients += actual[i].abs().sum().item<double>();
    }
    EXPECT_TRUE(std::isfinite(gradients) && gradients > 0);  // otherwise the comparison is vacuous
  }
}

class RecomputedStep : public ::testing::TestWithParam<int> {
 public:
  static void TearDownTestSuite() {
    std::printf("covered: %zu combinations with the same bits in every recomputation mode\n",
                compared_.load());
  }

 protected:
  static void check(const Variant& run, const comm::Group& group) {
    expect_same_bits(run, group);
    if (group.rank() == 0) ++compared_;
  }

  static inline std::atomic<size_t> compared_{0};  // several threads increment it
};

TEST_P(RecomputedStep, GivesTheSameBitsInEveryMode) {
  on_ranks(GetParam(), [](const comm::Group& group) {
    for (const Kind& kind : kKinds) {
      for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
        for (const Path path : kPaths) {
          for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
            for (const int64_t sequence : {7, 2}) {  // 2: empty shards with three or more ranks
              SCOPED_TRACE(std::string(kind.name) + ", " + c10::toString(dtype));
              check({config_of(kind), dtype, stream, path, sequence, 0.1, nothing}, group);
            }
          }
        }
      }
    }
  });
}

TEST_P(RecomputedStep, GivesTheSameBitsWithFrozenParameters) {
  on_ranks(GetParam(), [](const comm::Group& group) {
    for (const Kind& kind : kKinds) {
      for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
        for (const auto is_frozen : {embeddings, all_but_block_1}) {
          SCOPED_TRACE(kind.name);
          check({config_of(kind), at::kFloat, stream, Path::symmetric, 7, 0.1, is_frozen}, group);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RecomputedStep, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shardwise::testing::recompute_test
