// The reference: the unsharded model in fp64, and checks of its correctness.
#pragma once
#include <filesystem>
#include <map>
#include <memory>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// The results of one run of an unsharded model, by label.
using Results = std::map<Label, at::Tensor>;

/// Returns a copy of the weights in another dtype, over the same group.
std::unique_ptr<model::DecoderWeights> in_dtype(const model::DecoderWeights& weights, at::ScalarType dtype);

/// Returns the results of a run over a group of one. Parameter gradients alias the main gradients.
Results results_of(const model::DecoderWeights& weights, const Trace& trace, const RunConfig& run_config);

/// Checks that every parameter exists once, in the order of the config, in its own layer.
Check check_parameter_names(const model::DecoderWeights& weights);
/// Checks that without dropout the embedding's output is the rows of its ids, plus those of learned
/// positions.
Check check_embedding(const model::DecoderWeights& weights, const TestCase& test_case,
                      const Results& reference);
/// Checks the loss against the formula of nn/loss.h, computed from the full logits with ATen operators.
Check check_loss(const TestCase& test_case, const Results& reference);
/// Checks the main gradients of the preceding run along a random direction against a finite difference of the
/// loss. On failure, names the last parameter in forward order whose gradient is wrong. Modifies the fp64
/// `weights` temporarily. Cost: four forwards; on failure four more per parameter.
Check check_gradients(const model::DecoderWeights& weights, const TestCase& test_case, uint64_t seed);

/// Returns the logits of an unsharded model. `valid`: as in formula_logits. Shapes: ids [s, b] int64 → [s, b,
/// v].
at::Tensor logits_of(const model::DecoderWeights& weights, const at::Tensor& ids,
                     const std::vector<base::Range>& valid);

/// Checks the logits of the checkpoint in `directory` at TP=1 in fp64, loaded and computed as for generation,
/// against formula_logits: of sequences without padding, and padded on either side. Not collective. Errors:
/// those of checkpoint::load_weights and formula_logits.
Check check_logits(const std::filesystem::path& directory);

}  // namespace shardwise::doctor
