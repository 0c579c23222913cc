#include "shardwise/doctor/vectors.h"

namespace shardwise::doctor {

namespace {

/// Keeps these numbers apart from those of weights and masks.
constexpr uint64_t kVectorStream = 2;

}  // namespace

void draw_vectors_(model::DecoderWeights& weights, uint64_t seed) {
  const nn::UsedParameters& roles = weights.roles();
  for (size_t i = 0; i < roles.size(); ++i) {
    const parallel::Parameter& parameter = *roles[i].parameter;
    if (parameter.global_shape.size() != 1) continue;
    at::Tensor value = parameter.value.detach();
    const auto pieces = parameter.rule.is_replicated() ? std::vector<base::ShardRule::Piece>()
                                                       : parameter.rule.pieces(weights.group().rank());
    kernels::fill_normal_(value, parameter.global_shape, /*dim=*/0, pieces,
                          kernels::RandomKey::of(seed).fold(kVectorStream).fold(i),
                          parameter.name.ends_with(".bias") ? 0 : 1, kSpread);
  }
}

}  // namespace shardwise::doctor
