// Generation of small models over ranks, whose results all ranks must share.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "shardwise/infer/generate.h"
#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing {

using Ids = std::vector<int64_t>;

/// Checks that all ranks return the same tokens. Each rank samples by itself, so one different bit could make
/// their sequences diverge.
inline void expect_same_on_all(const std::vector<infer::Generated>& results) {
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (size_t i = 0; i < results[0].completions.size(); ++i) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", request " + std::to_string(i));
      EXPECT_EQ(results[rank].completions[i].token_ids, results[0].completions[i].token_ids);
      EXPECT_EQ(results[rank].completions[i].logprobs, results[0].completions[i].logprobs);
      EXPECT_EQ(results[rank].completions[i].finish_reason, results[0].completions[i].finish_reason);
    }
  }
}

/// Returns every rank's result, after checking that OnToken received the same tokens and that all ranks
/// agree.
inline std::vector<infer::Generated> generated(const config::Config& config, const Tensors& full_weights,
                                               const std::vector<infer::Request>& requests, int ranks,
                                               const infer::Batching& batching = {},
                                               at::ScalarType dtype = at::kDouble) {
  std::vector<infer::Generated> results(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, dtype);
    load_slices_(weights, full_weights);
    std::vector<Ids> reported(requests.size());
    results[group.rank()] =
        infer::generate(weights, requests, config.eos_token_id, batching, [&](size_t request, int64_t id) {
          reported[request].push_back(id);
          return true;
        });
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(reported[i], results[group.rank()].completions[i].token_ids);
  });
  expect_same_on_all(results);
  return results;
}

/// Returns model variants that affect attention over a cache.
inline std::vector<std::pair<std::string, config::Config>> variants() {
  config::Config plain = small_config(), windowed = plain, normed = plain, learned = plain;
  windowed.sliding_window = 3;
  normed.qk_norm = true;
  learned.positions = config::Positions::learned;
  learned.norm = config::Norm::layer;
  return {{"plain", plain}, {"a window", windowed}, {"q/k norm", normed}, {"learned positions", learned}};
}

}  // namespace shardwise::testing
