#include "shardwise/doctor/dropout_masks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <set>

#include "shardwise/comm/gather_values.h"
#include "shardwise/nn/dropout.h"

namespace shardwise::doctor {

using at::Tensor;
using nn::DropoutSite;

namespace {

std::vector<DropoutSite> residual_places(int64_t layers) {
  std::vector<DropoutSite> places{{-1, DropoutSite::embedding}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    places.push_back({layer, DropoutSite::attention_output});
    places.push_back({layer, DropoutSite::mlp_output});
  }
  return places;
}

std::string name_of(const DropoutSite& place) {
  if (place.site == DropoutSite::embedding) return "the embedding";
  const char* site = place.site == DropoutSite::attention_output ? "attention" : "MLP";
  return fmt::format("layer {}'s {}", place.layer, site);
}

/// Returns `rows` of ones on the residual stream after dropout.
template <nn::ResidualStream Residual>
Tensor mask(const nn::Step& step, const DropoutSite& place, int64_t rows, const Tensor& like) {
  const Tensor ones = at::ones({rows, like.size(1), like.size(2)}, like.options());
  return nn::dropout(nn::Placed<Residual>(ones), step, place).local();
}

bool matches_unsharded(const TestCase& test_case, const RunConfig& run_config, const comm::Group& group,
                       const DropoutSite& place, const Tensor& like) {
  const nn::Step step = make_step(test_case, run_config, group),
                 unsharded = make_step(test_case, run_config, comm::Group());
  const Tensor full = mask<nn::Invariant>(unsharded, place, like.size(0), like);
  if (run_config.parallelism == plan::Parallelism::tp)
    return mask<nn::Invariant>(step, place, like.size(0), like).equal(full);
  const base::Range local = step.local_sequence();
  return mask<nn::Sharded<nn::kSequence>>(step, place, local.size(), like)
      .equal(full.narrow(nn::kSequence, local.begin, local.size()));
}

/// Returns true if two places share a key, over two steps of two micro-batches each.
bool has_shared_key(int64_t layers) {
  std::vector<DropoutSite> places = residual_places(layers);
  for (int64_t layer = 0; layer < layers; ++layer)
    places.push_back({layer, DropoutSite::attention_probabilities});
  std::set<uint64_t> keys;
  for (const auto& [step, micro_batch] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}}) {
    const auto key = nn::masks_key(/*seed=*/0, step, micro_batch);
    for (const DropoutSite& place : places) keys.insert(nn::mask_key(key, place).value);
  }
  return keys.size() < 4 * places.size();
}

}  // namespace

Check check_dropout_masks(const model::DecoderWeights& weights, const TestCase& test_case,
                          const RunConfig& run_config) {
  const at::NoGradGuard no_grad;
  const int64_t layers = weights.config().num_hidden_layers;
  const Tensor& ids = test_case.tokens.ids;
  // Expanded, so that it takes no memory.
  const Tensor like = at::ones({1, 1, 1}, at::TensorOptions(run_config.dtype))
                          .expand({ids.size(0), ids.size(1), weights.config().hidden_size});
  const std::string name = "dropout masks", scope = run_config.name(weights.group().size());
  for (const DropoutSite& place : residual_places(layers)) {
    const int matches = matches_unsharded(test_case, run_config, weights.group(), place, like);
    int matching = 0;
    for (const int rank : comm::gather_values(matches, weights.group())) matching += rank;
    const int others = weights.group().size() - matching;
    if (others > 0)
      return {name, scope, false,
              fmt::format("{} of {} ranks have another mask after {} than TP=1", others,
                          weights.group().size(), name_of(place))};
  }
  if (has_shared_key(layers)) return {name, scope, false, "two places, micro-batches or steps share a mask"};
  return {name, scope, true, fmt::format("bit-equal to TP=1 at {} places", 2 * layers + 1)};
}

}  // namespace shardwise::doctor
