// Shared by the tests of checkpoint/: a small model with uneven shards, full tensors to fill it from, and the
// comparison of shards with them. None of it uses the code under test.
#pragma once
#include <string>

#include "shardwise/checkpoint/checkpoint.h"
#include "tests/support/cases.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

using test::TemporaryDirectory;

/// Returns a config with 6 query and 3 KV heads (replicated on 2 and 4 ranks), vocabulary 17, ffn 101 and the
/// biases of `family`: llama, phi3 (fused in the file) or gpt2 (transposed in the file, 6 KV heads).
config::Config uneven_config(bool is_tied = false, const std::string& family = "llama");

/// The full weights and, by `<name>.exp_avg` and so on, the full tensors of the optimizer.
struct FullState {
  Tensors tensors;
  at::ScalarType dtype;  // of the weights
  bool has_masters() const { return dtype == at::kBFloat16; }
};
FullState full_state(const config::Config& config, at::ScalarType dtype, uint64_t seed);

/// A rank's model and optimizer state.
struct RankState {
  RankState(const config::Config& config, const comm::Group& group, const FullState& like);
  model::DecoderWeights weights;
  checkpoint::TrainState state;
};

/// Fills every shard with its part of the full tensors.
void fill_(RankState& rank, const FullState& full);

/// Returns the names of the tensors whose shards differ in any bit from their part of the full tensors.
std::vector<std::string> differing(const RankState& rank, const FullState& full);

/// Creates, fills and saves the state as `step` on `ranks` threads.
void save_full(const std::string& dir, const config::Config& config, const FullState& full, int ranks,
               int64_t step, int64_t keep = 0);

/// Returns the sorted names of the directory's entries.
std::vector<std::string> names_in(const std::string& directory);

}  // namespace shardwise::testing
