// The rows of RMSNorm and LayerNorm on a GPU, forward and backward. They differ in the mean, which RMSNorm
// takes as 0, and in the bias. For *_cuda.cu.
#pragma once
#include <algorithm>

#include "shardwise/kernels/partial_sums_cuda.h"
#include "shardwise/kernels/row_cuda.h"
#include "shardwise/kernels/row_launch_cuda.h"

namespace shardwise::kernels::cuda {

/// Which norm.
struct Rms {
  static constexpr bool kHasMean = false;
};
struct Layer {
  static constexpr bool kHasMean = true;
};

/// What becomes of normalized rows. `mean` and `bias` are LayerNorm's.
template <class T>
struct NormRows {
  T* y;
  float *mean, *rstd;
  const T *weight, *bias;
  int h;
  float eps;
  float inverse_h = 1.0f / static_cast<float>(h);
};

/// Normalizes a row of which the thread holds `xs`. Squares of x − mean do not cancel.
template <class Norm, class T, int N, int kPacks>
__device__ void normalize(const NormRows<T>& norm, int64_t row, RowPart<T, N, kPacks>& xs) {
  RowPart<T, N, kPacks> weights, biases;
  weights.load(norm.weight, norm.h);
  if constexpr (Norm::kHasMean) biases.load(norm.bias, norm.h);
  float sum = 0, mean = 0, squares = 0;
  if constexpr (Norm::kHasMean) {
    for_each_element<N, kPacks>(norm.h, [&](int p, int i, int) { sum += xs.at(p, i); });
    mean = block_sum(sum, /*turn=*/0) * norm.inverse_h;
  }
  for_each_element<N, kPacks>(norm.h, [&](int p, int i, int) {
    const float centered = xs.at(p, i) - mean;
    squares = fmaf(centered, centered, squares);
  });
  const float rstd = 1.0f / sqrtf(fmaf(block_sum(squares, /*turn=*/1), norm.inverse_h, norm.eps));
  for_each_element<N, kPacks>(norm.h, [&](int p, int i, int) {
    float y = (xs.at(p, i) - mean) * rstd * weights.at(p, i);
    if constexpr (Norm::kHasMean) y += biases.at(p, i);
    xs.packs[p].at[i] = static_cast<T>(y);
  });
  xs.store(norm.y + row * norm.h, norm.h);
  if (threadIdx.x != 0) return;
  norm.rstd[row] = rstd;
  if constexpr (Norm::kHasMean) norm.mean[row] = mean;
}

/// Normalizes a row that packs do not fit: of an odd width, not aligned, or too wide for registers.
template <class Norm, class T>
__device__ void normalize(const NormRows<T>& norm, int64_t row, const T* x) {
  float sum = 0, mean = 0, squares = 0;
  if constexpr (Norm::kHasMean) {
    for (int i = threadIdx.x; i < norm.h; i += blockDim.x) sum += static_cast<float>(x[i]);
    mean = block_sum(sum, /*turn=*/0) * norm.inverse_h;
  }
  for (int i = threadIdx.x; i < norm.h; i += blockDim.x) {
    const float centered = static_cast<float>(x[i]) - mean;
    squares = fmaf(centered, centered, squares);
  }
  const float rstd = 1.0f / sqrtf(fmaf(block_sum(squares, /*turn=*/1), norm.inverse_h, norm.eps));
  for (int i = threadIdx.x; i < norm.h; i += blockDim.x) {
    float y = (static_cast<float>(x[i]) - mean) * rstd * static_cast<float>(norm.weight[i]);
    if constexpr (Norm::kHasMean) y += static_cast<float>(norm.bias[i]);
    norm.y[row * norm.h + i] = static_cast<T>(y);
  }
  if (threadIdx.x != 0) return;
  norm.rstd[row] = rstd;
  if constexpr (Norm::kHasMean) norm.mean[row] = mean;
}

template <class Norm, class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads) norm_rows(NormRows<T> norm, const T* x) {
  RowPart<T, N, kPacks> xs;
  xs.load(x + int64_t{blockIdx.x} * norm.h, norm.h);
  normalize<Norm>(norm, blockIdx.x, xs);
}

template <class Norm, class T>
__global__ void __launch_bounds__(kAnyRowThreads) norm_any_rows(NormRows<T> norm, const T* x) {
  normalize<Norm>(norm, blockIdx.x, x + int64_t{blockIdx.x} * norm.h);
}

template <class Norm, class T>
void launch_norm(const NormRows<T>& norm, const T* x, int64_t rows, cudaStream_t stream) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>(rows);
  with_packs<T, kForwardElements>(
      norm.h, is_aligned(norm.y) && is_aligned(x) && is_aligned(norm.weight) && is_aligned(norm.bias),
      [&](auto packs, int threads) {
        launch(norm_rows<Norm, T, 16 / sizeof(T), packs>, blocks, threads, stream, norm, x);
      },
      [&] { launch(norm_any_rows<Norm, T>, blocks, kAnyRowThreads, stream, norm, x); });
}

}  // namespace shardwise::kernels::cuda
