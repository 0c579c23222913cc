// Choosing one token from its logits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardwise::infer {

struct Sampling {
  double temperature = 0;  // 0: the likeliest token; 1: as the model says; above: flatter
  uint64_t seed = 0;
};

/// The token at `position` of the text. Random numbers are a function of seed and position alone.
/// Shapes: `logits` [v] of the whole vocabulary.
/// Temperature 0 takes the lowest id among the highest logits.
/// Errors: c10::Error when a logit is NaN or all are −inf.
int64_t choose_token(const at::Tensor& logits, const Sampling& sampling, int64_t position);

}  // namespace shardwise::infer
