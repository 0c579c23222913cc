// The norm of all gradients on a GPU, and the factor that clips them: the host need not read either.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardwise/kernels/chunks_cuda.h"

namespace shardwise::kernels::cuda {

/// One tensor of `n` elements.
struct SummedTensor {
  const float* data;
  int64_t n;
};

/// Tensors to sum over; all arrays on the device.
struct SquareSum {
  double* sum;                  // [1]
  double* partial;              // scratch [chunks.count]
  const SummedTensor* tensors;  // [chunks.tensors]
  Chunks chunks;
};
/// Computes sum = Σ x² over all tensors, in fp64, in an order that depends only on their sizes.
void square_sum(const SquareSum& sum, cudaStream_t stream);

/// Computes scale[0] = max_norm / (√sum + 1e-6) if that is below one, else 1, from the sum over all ranks; 1
/// if max_norm is 0; NaN if the sum or the loss is not finite. Source: torch.nn.utils.clip_grad_norm_.
void clip_scale(float* scale, const double* sum, const double* loss, double max_norm, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda
