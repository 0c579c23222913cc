// Backward of the rows of norm_rows_cuda.h. For *_cuda.cu.
//
// With n = (x − mean) · rstd and u = dy · weight: dx = rstd · (u − mean(u) − n · mean(u · n)), without
// mean(u) in RMSNorm; the weight's gradient is Σ_rows dy · n, and the bias's Σ_rows dy.
#pragma once
#include "shardwise/kernels/norm_rows_cuda.h"

namespace shardwise::kernels::cuda {

/// Rows and their gradients. `mean` and `bias_partial` are LayerNorm's. Null: `residual_grad`, which is added
/// to dx, and the blocks' sums [blocks, h] that are not wanted.
template <class T>
struct NormBackwardRows {
  T* dx;
  float *weight_partial, *bias_partial;
  const T *dy, *x, *weight, *residual_grad;
  const float *mean, *rstd;
  int64_t rows;
  int h;
  float inverse_h = 1.0f / static_cast<float>(h);
};

/// A row's statistics, and what its elements need of the whole row.
template <class Norm>
struct BackwardRow {
  float mean = 0, rstd;
  float sums[Norm::kHasMean ? 2 : 1] = {};  // of u · n and, in LayerNorm, of u

  template <class T>
  __device__ BackwardRow(const NormBackwardRows<T>& norm, int64_t row) : rstd(norm.rstd[row]) {
    if constexpr (Norm::kHasMean) mean = norm.mean[row];
  }
  __device__ float normalized(float x) const { return (x - mean) * rstd; }
  __device__ void add(float u, float n) {
    sums[0] = fmaf(u, n, sums[0]);
    if constexpr (Norm::kHasMean) sums[1] += u;
  }
  /// Turns the threads' sums into the row's means.
  __device__ void finish(float inverse_h, int turn) {
    block_sums(sums, turn);
    for (float& sum : sums) sum *= inverse_h;
  }
  __device__ float dx(float u, float n) const {
    if constexpr (Norm::kHasMean) u -= sums[1];
    return rstd * fmaf(n, -sums[0], u);
  }
};

/// Each block has the rows blockIdx, blockIdx + blocks, ..., and sums its part of the gradients of weight and
/// bias.
template <class Norm, class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads) norm_backward_rows(NormBackwardRows<T> norm) {
  const int h = norm.h;
  RowPart<T, N, kPacks> weights;
  weights.load(norm.weight, h);
  float weight_sums[kPacks][N] = {}, bias_sums[kPacks][N] = {};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    RowPart<T, N, kPacks> xs, dys, residuals = {};
    xs.load(norm.x + row * h, h);
    dys.load(norm.dy + row * h, h);
    if (norm.residual_grad != nullptr) residuals.load(norm.residual_grad + row * h, h);
    BackwardRow<Norm> own(norm, row);
    for_each_element<N, kPacks>(
        h, [&](int p, int i, int) { own.add(dys.at(p, i) * weights.at(p, i), own.normalized(xs.at(p, i))); });
    own.finish(norm.inverse_h, turn++);
    for_each_element<N, kPacks>(h, [&](int p, int i, int) {
      const float n = own.normalized(xs.at(p, i)), dy = dys.at(p, i);
      weight_sums[p][i] = fmaf(dy, n, weight_sums[p][i]);
      if constexpr (Norm::kHasMean) bias_sums[p][i] += dy;
      dys.packs[p].at[i] = static_cast<T>(own.dx(dy * weights.at(p, i), n) + residuals.at(p, i));
    });
    dys.store(norm.dx + row * h, h);
  }
  const int64_t at = int64_t{blockIdx.x} * h;
  if (norm.weight_partial != nullptr) store_sums<N, kPacks>(norm.weight_partial + at, weight_sums, h);
  if (Norm::kHasMean && norm.bias_partial != nullptr)
    store_sums<N, kPacks>(norm.bias_partial + at, bias_sums, h);
}

/// Rows that packs do not fit. A thread keeps its sums in the partial sums' memory.
template <class Norm, class T>
__global__ void __launch_bounds__(kAnyRowThreads) norm_backward_any_rows(NormBackwardRows<T> norm) {
  const int64_t block = int64_t{blockIdx.x} * norm.h;
  float* const weight_sums = norm.weight_partial == nullptr ? nullptr : norm.weight_partial + block;
  float* const bias_sums =
      !Norm::kHasMean || norm.bias_partial == nullptr ? nullptr : norm.bias_partial + block;
  const auto value = [](const T* at, int64_t i) { return static_cast<float>(at[i]); };
  for (int i = threadIdx.x; i < norm.h; i += blockDim.x) {
    if (weight_sums != nullptr) weight_sums[i] = 0;
    if (bias_sums != nullptr) bias_sums[i] = 0;
  }
  int turn = 0;
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const int64_t at = row * norm.h;
    BackwardRow<Norm> own(norm, row);
    for (int i = threadIdx.x; i < norm.h; i += blockDim.x)
      own.add(value(norm.dy, at + i) * value(norm.weight, i), own.normalized(value(norm.x, at + i)));
    own.finish(norm.inverse_h, turn++);
    for (int i = threadIdx.x; i < norm.h; i += blockDim.x) {
      const float n = own.normalized(value(norm.x, at + i)), dy = value(norm.dy, at + i);
      const float residual = norm.residual_grad == nullptr ? 0.0f : value(norm.residual_grad, at + i);
      if (weight_sums != nullptr) weight_sums[i] = fmaf(dy, n, weight_sums[i]);
      if (bias_sums != nullptr) bias_sums[i] += dy;
      norm.dx[at + i] = static_cast<T>(own.dx(dy * value(norm.weight, i), n) + residual);
    }
  }
}

/// Adds to the gradients whose partial sums are not null.
template <class Norm, class T>
void launch_norm_backward(const NormBackwardRows<T>& norm, int most_blocks, float* weight_grad,
                          float* bias_grad, cudaStream_t stream) {
  if (norm.rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(most_blocks, norm.rows));
  with_packs<T, kBackwardElements>(
      norm.h,
      is_aligned(norm.dx) && is_aligned(norm.dy) && is_aligned(norm.x) && is_aligned(norm.weight) &&
          is_aligned(norm.residual_grad) && is_aligned(norm.weight_partial) && is_aligned(norm.bias_partial),
      [&](auto packs, int threads) {
        launch(norm_backward_rows<Norm, T, 16 / sizeof(T), packs>, blocks, threads, stream, norm);
      },
      [&] { launch(norm_backward_any_rows<Norm, T>, blocks, kAnyRowThreads, stream, norm); });
  const auto add = [&](float* grad, const float* partial) {
    if (partial != nullptr) add_partial_sums(grad, partial, static_cast<int>(blocks), norm.h, stream);
  };
  add(weight_grad, norm.weight_partial);
  add(bias_grad, norm.bias_partial);
}

}  // namespace shardwise::kernels::cuda
