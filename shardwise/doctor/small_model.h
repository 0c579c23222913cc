// A model of the same kind that trains in milliseconds: what the rehearsal is of.
#pragma once
#include "shardwise/model/config.h"

namespace shardwise::doctor {

/// Tokens of a sequence of such a model: more than its window has, and no multiple of a usual number of
/// ranks.
inline constexpr int64_t kSmallLength = 19;

/// `config` with two layers, few and odd sizes and the vocabulary of bytes. What sets the family apart stays:
/// heads, biases, norms, activation, positions, a tied head, and windows, which a few tokens fill. Its
/// weights are drawn widely, so that other tokens give clearly other losses.
model::Config in_small(const model::Config& config);

}  // namespace shardwise::doctor
