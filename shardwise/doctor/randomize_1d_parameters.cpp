#include "shardwise/doctor/randomize_1d_parameters.h"

namespace shardwise::doctor {

namespace {

/// Separates these random numbers from those of weights and masks.
constexpr uint64_t kRandomStream = 2;

}  // namespace

void randomize_1d_parameters_(model::DecoderWeights& weights, uint64_t seed) {
  const nn::UsedParameters& used_parameters = weights.used_parameters();
  for (size_t i = 0; i < used_parameters.size(); ++i) {
    const parallel::Parameter& parameter = *used_parameters[i].parameter;
    if (parameter.global_shape.size() != 1) continue;
    at::Tensor value = parameter.value.detach();
    const auto pieces = parameter.rule.is_replicated() ? std::vector<base::ShardRule::Piece>()
                                                       : parameter.rule.pieces(weights.group().rank());
    kernels::fill_normal_(value, parameter.global_shape, /*dim=*/0, pieces,
                          kernels::RandomKey::of(seed).fold(kRandomStream).fold(i),
                          parameter.name.ends_with(".bias") ? 0 : 1, kInitStd);
  }
}

}  // namespace shardwise::doctor
