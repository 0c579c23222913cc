// Drawn weights that hide nothing.
#pragma once
#include "shardwise/model/decoder.h"

namespace shardwise::doctor {

/// Of what small models' weights are drawn from.
inline constexpr double kSpread = 0.3;

/// Draws biases from normal(0, 0.3) and norm weights from normal(1, 0.3), the same at every tp size: those of
/// fresh weights are zero and one, which a bias that is added twice leaves as they are.
void draw_vectors_(model::DecoderWeights& weights, uint64_t seed);

}  // namespace shardwise::doctor
