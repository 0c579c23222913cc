#include "shardwise/doctor/masks.h"

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

std::vector<DropoutSite> places_on_stream(int64_t layers) {
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

/// `rows` of ones on the stream, after dropout.
template <nn::ResidualStream Stream>
Tensor mask(const nn::Step& step, const DropoutSite& place, int64_t rows, const Tensor& like) {
  const Tensor ones = at::ones({rows, like.size(1), like.size(2)}, like.options());
  return nn::dropout(nn::Placed<Stream>(ones), step, place).local();
}

bool is_slice_of_whole(const Task& task, const Way& way, const comm::Group& group, const DropoutSite& place,
                       const Tensor& like) {
  const nn::Step step = step_of(task, way, group), alone = step_of(task, way, comm::Group());
  const Tensor whole = mask<nn::Invariant>(alone, place, like.size(0), like);
  if (way.stream == plan::Stream::tp)
    return mask<nn::Invariant>(step, place, like.size(0), like).equal(whole);
  const base::Range own = step.local_sequence();
  return mask<nn::Sharded<nn::kSequence>>(step, place, own.size(), like)
      .equal(whole.narrow(nn::kSequence, own.begin, own.size()));
}

/// Over two steps of two micro-batches, a set of places each.
bool has_shared_key(int64_t layers) {
  std::vector<DropoutSite> places = places_on_stream(layers);
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

Audit audit_masks(const model::DecoderWeights& weights, const Task& task, const Way& way) {
  const at::NoGradGuard no_grad;
  const int64_t layers = weights.config().num_hidden_layers;
  const Tensor& ids = task.tokens.ids;
  // A shape without memory of its own.
  const Tensor like = at::ones({1, 1, 1}, at::TensorOptions(way.dtype))
                          .expand({ids.size(0), ids.size(1), weights.config().hidden_size});
  const std::string name = "masks", of = way.name(weights.group().size());
  for (const DropoutSite& place : places_on_stream(layers)) {
    const int own = is_slice_of_whole(task, way, weights.group(), place, like);
    int alike = 0;
    for (const int rank : comm::gather_values(own, weights.group())) alike += rank;
    const int others = weights.group().size() - alike;
    if (others > 0)
      return {name, of, false,
              fmt::format("{} of {} ranks draw another mask behind {} than TP=1", others,
                          weights.group().size(), name_of(place))};
  }
  if (has_shared_key(layers))
    return {name, of, false, "two places, micro-batches or steps draw the same mask"};
  return {name, of, true, fmt::format("of {} places, those of TP=1", 2 * layers + 1)};
}

}  // namespace shardwise::doctor
