// Generation from weights that begin in their files gives the tokens of loaded weights, and packs them as it
// goes.
#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/base/isa.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/infer/generate.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::mapped_test {
namespace {

using model::DecoderWeights;

int64_t mapped_weights(const DecoderWeights& weights) {
  return std::ranges::count_if(weights.used_parameters(), [](const nn::UsedParameter& used) {
    return used.parameter->panels && used.parameter->panels->mapped_rows;
  });
}

std::vector<infer::Request> requests() {
  std::vector<infer::Request> result{{{3, 16, 0}, 12, {}}, {{5, 9, 2, 60, 31}, 9, {}}, {{7}, 11, {}}};
  for (infer::Request& request : result) request.wants_logprobs = true;
  return result;
}

TEST(GenerationFromMappedWeights, HasTheBitsOfLoadedOnesAndPacksThem) {
  for (const bool is_tied : {false, true}) {
    const config::Config config = wide_config("llama", is_tied);
    const TemporaryDirectory directory;
    save_full(directory.path(), config, full_state(config, at::kBFloat16, /*seed=*/52), /*ranks=*/1,
              /*step=*/1);
    const std::string path = checkpoint::resolve(directory.path());
    for (const int ranks : {1, 2}) {
      on_ranks(ranks, [&](const comm::Group& group) {
        const DecoderWeights mapped(config, group, at::kBFloat16, model::WeightUse::inference),
            loaded(config, group, at::kBFloat16, model::WeightUse::inference);
        checkpoint::map_weights(path, mapped);
        checkpoint::load_weights(path, loaded);
        const bool maps = base::best_isa() >= base::Isa::avx512_bf16;
        EXPECT_EQ(mapped_weights(mapped) > 0, maps);
        const auto one = infer::generate(mapped, {{{3}, 1, {}}}, {});
        EXPECT_EQ(one.completions[0].token_ids.size(), 1U);
        EXPECT_EQ(mapped_weights(mapped) > 0, maps) << "a single token needs no packing";
        const auto actual = infer::generate(mapped, requests(), {}),
                   expected = infer::generate(loaded, requests(), {});
        for (size_t i = 0; i < requests().size(); ++i) {
          EXPECT_EQ(actual.completions[i].token_ids, expected.completions[i].token_ids);
          EXPECT_EQ(actual.completions[i].logprobs, expected.completions[i].logprobs);
        }
        EXPECT_EQ(mapped_weights(mapped), 0);
      });
    }
  }
}

}  // namespace
}  // namespace shardwise::testing::mapped_test
