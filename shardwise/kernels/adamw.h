// One AdamW step of a tensor in one pass over memory: 16 bytes read and 12 written per fp32 element, or 16
// written if it zeroes the gradient.
//
// Source: Loshchilov & Hutter 2019, algorithm 2.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/adamw_factors.h"

namespace shardwise::kernels {

/// A tensor's weights, gradient and moments, all contiguous and of one shape and dtype, fp32 or fp64.
struct AdamWTensors {
  at::Tensor weights;
  at::Tensor gradient;
  at::Tensor exp_avg;     // the first moment
  at::Tensor exp_avg_sq;  // the second moment
  at::Tensor rounded;     // receives the new weights in bf16 or fp16; undefined if there is no such copy
};

/// Updates weights and moments, and writes the rounded weights. An element's result does not depend on its
/// position. Errors: c10::ValueError if shapes or dtypes differ.
void adamw_(const AdamWTensors& tensors, const AdamWStep& step);

}  // namespace shardwise::kernels
