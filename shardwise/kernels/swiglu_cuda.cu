#include "shardwise/kernels/swiglu_cuda.h"

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// g / (1 + …) would be divided again where exp is infinite.
__device__ float sigmoid(float g) {
  return 1.0f / (1.0f + expf(-g));
}

template <class T, int N>
__global__ void __launch_bounds__(kPackThreads) swiglu_packs(T* y, const T* gate_up, int f, unsigned parts) {
  const auto [row, pack] = pack_place(parts);
  if (pack >= f / N) return;
  const auto* const row_packs = as_packs<N>(gate_up + row * 2 * f);
  const Pack<T, N> gate = row_packs[pack], up = row_packs[f / N + pack];
  Pack<T, N> product;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = static_cast<float>(gate.at[i]);
    product.at[i] = static_cast<T>(g * sigmoid(g) * static_cast<float>(up.at[i]));
  }
  as_packs<N>(y + row * f)[pack] = product;
}

template <class T, int N>
__global__ void __launch_bounds__(kPackThreads)
    swiglu_backward_packs(T* d_gate_up, const T* dy, const T* gate_up, int f, unsigned parts) {
  const auto [row, pack] = pack_place(parts);
  if (pack >= f / N) return;
  const auto* const row_packs = as_packs<N>(gate_up + row * 2 * f);
  const Pack<T, N> gate = row_packs[pack], up = row_packs[f / N + pack];
  const Pack<T, N> of_y = as_packs<N>(dy + row * f)[pack];
  Pack<T, N> d_gate, d_up;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = static_cast<float>(gate.at[i]), d = static_cast<float>(of_y.at[i]), s = sigmoid(g);
    d_gate.at[i] = static_cast<T>(d * static_cast<float>(up.at[i]) * s * fmaf(g, 1.0f - s, 1.0f));
    d_up.at[i] = static_cast<T>(d * g * s);
  }
  auto* const d_packs = as_packs<N>(d_gate_up + row * 2 * f);
  d_packs[pack] = d_gate;
  d_packs[f / N + pack] = d_up;
}

}  // namespace

template <class T>
void swiglu(const Swiglu<T>& s, cudaStream_t stream) {
  if (s.rows == 0) return;
  with_pack<T>(s.f, is_aligned(s.y) && is_aligned(s.gate_up), [&](auto n) {
    launch_packs(swiglu_packs<T, n>, s.rows, s.f / n, stream, s.y, s.gate_up, s.f);
  });
}
template void swiglu(const Swiglu<float>&, cudaStream_t);
template void swiglu(const Swiglu<__nv_bfloat16>&, cudaStream_t);
template void swiglu(const Swiglu<__half>&, cudaStream_t);

template <class T>
void swiglu_backward(const SwigluBackward<T>& s, cudaStream_t stream) {
  if (s.rows == 0) return;
  with_pack<T>(s.f, is_aligned(s.d_gate_up) && is_aligned(s.dy) && is_aligned(s.gate_up), [&](auto n) {
    launch_packs(swiglu_backward_packs<T, n>, s.rows, s.f / n, stream, s.d_gate_up, s.dy, s.gate_up, s.f);
  });
}
template void swiglu_backward(const SwigluBackward<float>&, cudaStream_t);
template void swiglu_backward(const SwigluBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
