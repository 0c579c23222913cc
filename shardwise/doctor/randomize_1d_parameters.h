// Random biases and norm weights.
#pragma once
#include "shardwise/model/decoder.h"

namespace shardwise::doctor {

/// Standard deviation of the weights of small models.
inline constexpr double kInitStd = 0.3;

/// Draws biases from normal(0, 0.3) and norm weights from normal(1, 0.3), equal at every tp size. Their
/// default values, 0 and 1, would hide errors such as a bias added twice.
void randomize_1d_parameters_(model::DecoderWeights& weights, uint64_t seed);

}  // namespace shardwise::doctor
