// A small model whose cuts are all uneven, whole tensors to fill it from, and the comparison with them: what
// the tests of checkpoint/ share. None of it uses the code under test.
#pragma once
#include <string>

#include "shardwise/checkpoint/checkpoint.h"
#include "tests/support/cases.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

using test::TemporaryDirectory;

/// 6 query and 3 KV heads (held twice on 2 and 4 ranks), vocabulary 17, ffn 101, biases where `family` has
/// them: llama, phi3 (fused in the file) or gpt2 (transposed there, and 6 KV heads).
model::Config uneven_config(bool is_tied = false, const std::string& family = "llama");

/// The weights and, by `<name>.exp_avg` and so on, the optimizer's tensors, all whole.
struct WholeState {
  Tensors tensors;
  at::ScalarType dtype;  // of the weights
  bool has_masters() const { return dtype == at::kBFloat16; }
};
WholeState whole_state(const model::Config& config, at::ScalarType dtype, uint64_t seed);

/// A rank's model and optimizer state, with slices of their own.
struct RankState {
  RankState(const model::Config& config, const comm::Group& group, const WholeState& like);
  model::DecoderWeights weights;
  checkpoint::TrainState state;
};

/// Fills every slice with its part of the whole.
void fill_(RankState& rank, const WholeState& whole);

/// The names of the tensors whose slices are not, bit for bit, their part of the whole.
std::vector<std::string> differing(const RankState& rank, const WholeState& whole);

/// On `ranks` threads: makes the state, fills it and saves it as `step`.
void save_whole(const std::string& dir, const model::Config& config, const WholeState& whole, int ranks,
                int64_t step, int64_t keep = 0);

/// What the directory holds, sorted, by name.
std::vector<std::string> names_in(const std::string& directory);

}  // namespace shardwise::testing
