// Inference with weights packed in bf16 is as accurate as with dense ones, whatever the number of rows.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "shardwise/base/isa.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/model/decoder.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::packed_test {
namespace {

using model::DecoderWeights;
using model::WeightUse;

/// Returns this rank's logits of `ids`, with the weights in `directory`.
at::Tensor logits(const std::string& directory, const at::Tensor& ids, const config::Config& config,
                  const comm::Group& group, at::ScalarType dtype, WeightUse use) {
  const at::NoGradGuard no_grad;
  const DecoderWeights weights(config, group, dtype, use);
  checkpoint::load_weights(directory, weights);
  const nn::Step step(group, ids.size(0));
  return model::Decoder<nn::Invariant>(weights).logits(ids, step).local();
}

TEST(PackedWeights, AreAsAccurateAsDenseOnes) {
  for (const bool is_tied : {false, true}) {
    const config::Config config = wide_config("llama", is_tied);
    const TemporaryDirectory directory;
    const std::string path =
        put_weights(directory.path(), config, full_state(config, at::kFloat, /*seed=*/41).tensors);
    for (const int ranks : {1, 2}) {
      for (const int64_t rows : {1, 5, 8, 16}) {
        const at::Tensor ids =
            random_tensor({rows, 1}, /*seed=*/42).abs().mul(40).to(at::kLong).remainder(128);
        on_ranks(ranks, [&](const comm::Group& group) {
          const auto of = [&](at::ScalarType dtype, WeightUse use) {
            return logits(path, ids, config, group, dtype, use);
          };
          const at::Tensor exact = of(at::kDouble, WeightUse::training),
                           packed = of(at::kBFloat16, WeightUse::inference),
                           dense = of(at::kBFloat16, WeightUse::training);
          EXPECT_LE(relative_error(packed, exact), 1.5 * relative_error(dense, exact))
              << rows << " rows on " << ranks << " ranks";
        });
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::testing::packed_test
