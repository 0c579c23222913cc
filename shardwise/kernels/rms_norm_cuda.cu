#include "shardwise/kernels/rms_norm_cuda.h"

#include <algorithm>

#include "shardwise/kernels/partial_sums_cuda.h"
#include "shardwise/kernels/row_cuda.h"
#include "shardwise/kernels/row_launch_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

template <class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads)
    rms_norm_rows(T* y, float* rstd, const T* x, const T* weight, int h, float inverse_h, float eps) {
  const int64_t row = blockIdx.x;
  RowPart<T, N, kPacks> xs, weights;
  xs.load(x + row * h, h);
  weights.load(weight, h);
  float squares = 0;
  for_each_element<N, kPacks>(h,
                              [&](int p, int i, int) { squares = fmaf(xs.at(p, i), xs.at(p, i), squares); });
  const float inverse = 1.0f / sqrtf(fmaf(block_sum(squares, /*turn=*/0), inverse_h, eps));
  for_each_element<N, kPacks>(h, [&](int p, int i, int) {
    xs.packs[p].at[i] = static_cast<T>(xs.at(p, i) * inverse * weights.at(p, i));
  });
  xs.store(y + row * h, h);
  if (threadIdx.x == 0) rstd[row] = inverse;
}

/// Each block has the rows blockIdx, blockIdx + blocks, ..., and sums its part of the weight's gradient.
template <class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads)
    rms_norm_backward_rows(T* dx, float* partial, const T* dy, const T* x, const T* weight, const float* rstd,
                           int64_t rows, int h, float inverse_h) {
  RowPart<T, N, kPacks> weights;
  weights.load(weight, h);
  float sums[kPacks][N] = {};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    RowPart<T, N, kPacks> xs, dys;
    xs.load(x + row * h, h);
    dys.load(dy + row * h, h);
    const float inverse = rstd[row];
    float dot = 0;
    for_each_element<N, kPacks>(
        h, [&](int p, int i, int) { dot = fmaf(dys.at(p, i) * weights.at(p, i), xs.at(p, i), dot); });
    const float along = inverse * inverse * block_sum(dot, turn++) * inverse_h;
    for_each_element<N, kPacks>(h, [&](int p, int i, int) {
      const float of_x = xs.at(p, i), of_y = dys.at(p, i);
      sums[p][i] = fmaf(of_y, of_x * inverse, sums[p][i]);
      dys.packs[p].at[i] = static_cast<T>(inverse * fmaf(of_x, -along, of_y * weights.at(p, i)));
    });
    dys.store(dx + row * h, h);
  }
  if (partial != nullptr) store_sums<N, kPacks>(partial + int64_t{blockIdx.x} * h, sums, h);
}

/// Rows that packs do not fit: of an odd width, not aligned, or too wide for registers. Reads them twice.
template <class T>
__global__ void __launch_bounds__(kMostRowThreads)
    rms_norm_any_rows(T* y, float* rstd, const T* x, const T* weight, int h, float inverse_h, float eps) {
  const int64_t row = blockIdx.x;
  x += row * h;
  y += row * h;
  float squares = 0;
  for (int i = threadIdx.x; i < h; i += blockDim.x)
    squares = fmaf(static_cast<float>(x[i]), static_cast<float>(x[i]), squares);
  const float inverse = 1.0f / sqrtf(fmaf(block_sum(squares, /*turn=*/0), inverse_h, eps));
  for (int i = threadIdx.x; i < h; i += blockDim.x)
    y[i] = static_cast<T>(static_cast<float>(x[i]) * inverse * static_cast<float>(weight[i]));
  if (threadIdx.x == 0) rstd[row] = inverse;
}

/// As above; a thread keeps its sums in `partial`.
template <class T>
__global__ void __launch_bounds__(kMostRowThreads)
    rms_norm_backward_any_rows(T* dx, float* partial, const T* dy, const T* x, const T* weight,
                               const float* rstd, int64_t rows, int h, float inverse_h) {
  float* const sums = partial == nullptr ? nullptr : partial + int64_t{blockIdx.x} * h;
  for (int i = threadIdx.x; sums != nullptr && i < h; i += blockDim.x) sums[i] = 0;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at = row * h;
    const float inverse = rstd[row];
    float dot = 0;
    for (int i = threadIdx.x; i < h; i += blockDim.x)
      dot = fmaf(static_cast<float>(dy[at + i]) * static_cast<float>(weight[i]),
                 static_cast<float>(x[at + i]), dot);
    const float along = inverse * inverse * block_sum(dot, turn++) * inverse_h;
    for (int i = threadIdx.x; i < h; i += blockDim.x) {
      const float of_x = static_cast<float>(x[at + i]), of_y = static_cast<float>(dy[at + i]);
      if (sums != nullptr) sums[i] = fmaf(of_y, of_x * inverse, sums[i]);
      dx[at + i] = static_cast<T>(inverse * fmaf(of_x, -along, of_y * static_cast<float>(weight[i])));
    }
  }
}

}  // namespace

template <class T>
void rms_norm(const RmsNorm<T>& n, cudaStream_t stream) {
  if (n.rows == 0) return;
  const auto blocks = static_cast<unsigned>(n.rows);
  const float inverse_h = 1.0f / static_cast<float>(n.h);
  with_packs<T, kForwardElements>(
      n.h, is_aligned(n.y) && is_aligned(n.x) && is_aligned(n.weight),
      [&](auto packs, int threads) {
        launch(rms_norm_rows<T, 16 / sizeof(T), packs>, blocks, threads, stream, n.y, n.rstd, n.x, n.weight,
               n.h, inverse_h, n.eps);
      },
      [&] {
        launch(rms_norm_any_rows<T>, blocks, kAnyRowThreads, stream, n.y, n.rstd, n.x, n.weight, n.h,
               inverse_h, n.eps);
      });
}
template void rms_norm(const RmsNorm<float>&, cudaStream_t);
template void rms_norm(const RmsNorm<__nv_bfloat16>&, cudaStream_t);
template void rms_norm(const RmsNorm<__half>&, cudaStream_t);

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& n, cudaStream_t stream) {
  if (n.rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(n.blocks, n.rows));
  float* const partial = n.weight_grad ? n.partial : nullptr;
  const float inverse_h = 1.0f / static_cast<float>(n.h);
  with_packs<T, kBackwardElements>(
      n.h,
      is_aligned(n.dx) && is_aligned(n.dy) && is_aligned(n.x) && is_aligned(n.weight) && is_aligned(partial),
      [&](auto packs, int threads) {
        launch(rms_norm_backward_rows<T, 16 / sizeof(T), packs>, blocks, threads, stream, n.dx, partial, n.dy,
               n.x, n.weight, n.rstd, n.rows, n.h, inverse_h);
      },
      [&] {
        launch(rms_norm_backward_any_rows<T>, blocks, kAnyRowThreads, stream, n.dx, partial, n.dy, n.x,
               n.weight, n.rstd, n.rows, n.h, inverse_h);
      });
  if (partial != nullptr) add_partial_sums(n.weight_grad, partial, static_cast<int>(blocks), n.h, stream);
}
template void rms_norm_backward(const RmsNormBackward<float>&, cudaStream_t);
template void rms_norm_backward(const RmsNormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
