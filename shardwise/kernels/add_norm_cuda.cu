#include "shardwise/kernels/add_norm_cuda.h"

#include "shardwise/kernels/norm_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

template <class T>
struct Addition {
  T* residual;
  const T *x, *y, *bias;  // bias: or null
};

template <class T>
__device__ T sum(float x, float y) {
  return static_cast<T>(x + y);
}
template <class T>
__device__ T sum(float x, float y, float bias) {
  return sum<T>(x, static_cast<float>(sum<T>(y, bias)));
}

/// A multiprocessor may have one block of four packs of 8: for two, ptxas would spill on sm_80. 0: it
/// chooses.
template <class Norm, class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostRowThreads, /*least blocks=*/kPacks* N == 32 ? 1 : 0)
    add_norm_rows(Addition<T> add, NormRows<T> norm) {
  const int64_t row = blockIdx.x, at = row * norm.h;
  RowPart<T, N, kPacks> xs, ys, biases;
  xs.load(add.x + at, norm.h);
  ys.load(add.y + at, norm.h);
  if (add.bias == nullptr) {
    for_each_element<N, kPacks>(
        norm.h, [&](int p, int i, int) { xs.packs[p].at[i] = sum<T>(xs.at(p, i), ys.at(p, i)); });
  } else {
    biases.load(add.bias, norm.h);
    for_each_element<N, kPacks>(norm.h, [&](int p, int i, int) {
      xs.packs[p].at[i] = sum<T>(xs.at(p, i), ys.at(p, i), biases.at(p, i));
    });
  }
  xs.store(add.residual + at, norm.h);
  normalize<Norm>(norm, row, xs);
}

template <class Norm, class T>
__global__ void __launch_bounds__(kAnyRowThreads) add_norm_any_rows(Addition<T> add, NormRows<T> norm) {
  const int64_t row = blockIdx.x, at = row * norm.h;
  for (int i = threadIdx.x; i < norm.h; i += blockDim.x) {
    const float x = static_cast<float>(add.x[at + i]), y = static_cast<float>(add.y[at + i]);
    add.residual[at + i] = add.bias == nullptr ? sum<T>(x, y) : sum<T>(x, y, static_cast<float>(add.bias[i]));
  }
  normalize<Norm>(norm, row, add.residual + at);  // each thread reads what it wrote
}

template <class Norm, class T>
void add_norm(const AddNorm<T>& n, cudaStream_t stream) {
  if (n.rows == 0) return;
  const auto blocks = static_cast<unsigned>(n.rows);
  const Addition<T> add{n.residual, n.x, n.y, n.bias};
  const NormRows<T> norm{n.norm, n.mean, n.rstd, n.weight, n.norm_bias, n.h, n.eps};
  with_packs<T, kForwardElements>(
      n.h,
      is_aligned(n.residual) && is_aligned(n.norm) && is_aligned(n.x) && is_aligned(n.y) &&
          is_aligned(n.bias) && is_aligned(n.weight) && is_aligned(n.norm_bias),
      [&](auto packs, int threads) {
        launch(add_norm_rows<Norm, T, 16 / sizeof(T), packs>, blocks, threads, stream, add, norm);
      },
      [&] { launch(add_norm_any_rows<Norm, T>, blocks, kAnyRowThreads, stream, add, norm); });
}

}  // namespace

template <class T>
void add_rms_norm(const AddNorm<T>& add, cudaStream_t stream) {
  add_norm<Rms>(add, stream);
}
template void add_rms_norm(const AddNorm<float>&, cudaStream_t);
template void add_rms_norm(const AddNorm<__nv_bfloat16>&, cudaStream_t);
template void add_rms_norm(const AddNorm<__half>&, cudaStream_t);

template <class T>
void add_layer_norm(const AddNorm<T>& add, cudaStream_t stream) {
  add_norm<Layer>(add, stream);
}
template void add_layer_norm(const AddNorm<float>&, cudaStream_t);
template void add_layer_norm(const AddNorm<__nv_bfloat16>&, cudaStream_t);
template void add_layer_norm(const AddNorm<__half>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
