// One AdamW step of all tensors on a GPU, in one launch.
//
// Source: Loshchilov & Hutter 2019, algorithm 2. Reads 16 bytes per element and writes 12, 2 more for rounded
// weights and 4 more if it zeroes the gradient.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardwise/kernels/chunks_cuda.h"

namespace shardwise::kernels::cuda {

/// The `n` elements of one tensor.
template <class T>
struct AdamWTensor {
  float *weights, *gradient, *exp_avg, *exp_avg_sq;
  T* rounded;  // receives the new weights; ignored if T is float
  int64_t n;
  float decay;  // of the weights: 1 − learning rate · weight decay
};

/// What all elements share (adamw.h). `tensors` and `gradient_scale` are on the device.
template <class T>
struct AdamW {
  const AdamWTensor<T>* tensors;  // [chunks.tensors]
  Chunks chunks;
  const float* gradient_scale;  // [1], of clip_scale; null: 1; NaN: nothing changes
  float rate1, rate2;           // 1 − beta: how far the moments move
  float beta2;
  float step_size;     // learning rate / (1 − beta1^number)
  float inverse_root;  // 1 / sqrt(1 − beta2^number)
  float eps;
  bool zeroes_gradient;  // afterwards, for the next step's backward to add to
};
/// Updates weights and moments, and writes the rounded weights; bit-equal to the CPU's loop without FMA. T:
/// float or
/// __nv_bfloat16.
template <class T>
void adamw(const AdamW<T>& step, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
