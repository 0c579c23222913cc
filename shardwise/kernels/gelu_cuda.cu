// gelu(z) = z · Φ(z), gelu'(z) = Φ(z) + z · Φ'(z): the two forms are two Φ.
#include "shardwise/kernels/gelu_cuda.h"

#include "shardwise/kernels/gelu_tail.h"
#include "shardwise/kernels/pack_rows_cuda.h"
#include "shardwise/kernels/partial_sums_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

struct Phi {
  float value, slope;
};

/// The normal distribution's Φ.
struct Erf {
  __device__ static Phi phi(float z) {
    const float density = __expf(z * z * -0.5f);
    const float t = __fdividef(1.0f, fmaf(GeluTail::kSlope, fabsf(z), 1.0f));
    float p = GeluTail::c8;
    p = fmaf(p, t, GeluTail::c7);
    p = fmaf(p, t, GeluTail::c6);
    p = fmaf(p, t, GeluTail::c5);
    p = fmaf(p, t, GeluTail::c4);
    p = fmaf(p, t, GeluTail::c3);
    p = fmaf(p, t, GeluTail::c2);
    p = fmaf(p, t, GeluTail::c1);
    p = fmaf(p, t, GeluTail::c0);
    const float tail = 0.5f * density * (p * t);
    return {z < 0 ? tail : 1.0f - tail, density * 0.398942280f};
  }
};

/// (1 + tanh u) / 2 as the logistic function of 2u. Beyond ±24 it is 0 or 1 with slope 0; clamping avoids an
/// overflow of z³.
struct Tanh {
  __device__ static Phi phi(float z) {
    constexpr float kScale = 2 * 0.797884561f, kCubic = 0.044715f;
    const float x = z > 24.0f ? 24.0f : z < -24.0f ? -24.0f : z;
    const float value = __fdividef(1.0f, 1.0f + __expf(-kScale * fmaf(kCubic * x * x, x, x)));
    return {value, value * (1.0f - value) * (kScale * fmaf(3 * kCubic * x, x, 1.0f))};
  }
};

template <class Run>
void with_form(GeluForm form, const Run& run) {
  form == GeluForm::erf ? run(Erf{}) : run(Tanh{});
}

template <int N, class T>
__device__ Pack<T, N> bias_pack(const T* bias, int64_t pack) {
  if (bias != nullptr) return as_packs<N>(bias)[pack];
  Pack<T, N> zeros;
#pragma unroll
  for (int i = 0; i < N; ++i) zeros.at[i] = static_cast<T>(0.0f);
  return zeros;
}

template <class T, int N, class Form>
__global__ void __launch_bounds__(kPackThreads)
    gelu_packs(T* y, const T* x, const T* bias, int f, unsigned parts) {
  const auto [row, pack] = pack_place(parts);
  if (pack >= f / N) return;
  Pack<T, N> values = as_packs<N>(x + row * f)[pack];
  const Pack<T, N> added = bias_pack<N>(bias, pack);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float z = static_cast<float>(values.at[i]) + static_cast<float>(added.at[i]);
    values.at[i] = static_cast<T>(z * Form::phi(z).value);
  }
  as_packs<N>(y + row * f)[pack] = values;
}

/// The blocks of slice i have the rows i, i + slices, ...; `partial` [slices, f].
template <class T, int N, class Form>
__global__ void __launch_bounds__(kPackThreads)
    gelu_backward_packs(T* dx, float* partial, const T* dy, const T* x, const T* bias, int64_t rows, int f,
                        unsigned slices, unsigned parts) {
  const auto [slice, pack] = pack_place(parts);
  if (pack >= f / N) return;
  const Pack<T, N> added = bias_pack<N>(bias, pack);
  float sums[N] = {};
  for (int64_t row = slice; row < rows; row += slices) {
    const Pack<T, N> of_x = as_packs<N>(x + row * f)[pack];
    Pack<T, N> of_y = as_packs<N>(dy + row * f)[pack];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float z = static_cast<float>(of_x.at[i]) + static_cast<float>(added.at[i]);
      const Phi phi = Form::phi(z);
      const float dz = static_cast<float>(of_y.at[i]) * fmaf(z, phi.slope, phi.value);
      sums[i] += dz;
      of_y.at[i] = static_cast<T>(dz);
    }
    as_packs<N>(dx + row * f)[pack] = of_y;
  }
  if (partial != nullptr) store_floats(partial + slice * f, pack, sums);
}

}  // namespace

template <class T>
void gelu(const Gelu<T>& g, cudaStream_t stream) {
  if (g.rows == 0) return;
  with_pack<T>(g.f, is_aligned(g.y) && is_aligned(g.x) && is_aligned(g.bias), [&](auto n) {
    with_form(g.form, [&]<class Form>(Form) {
      launch_packs(gelu_packs<T, n, Form>, g.rows, g.f / n, stream, g.y, g.x, g.bias, g.f);
    });
  });
}
template void gelu(const Gelu<float>&, cudaStream_t);
template void gelu(const Gelu<__nv_bfloat16>&, cudaStream_t);
template void gelu(const Gelu<__half>&, cudaStream_t);

template <class T>
void gelu_backward(const GeluBackward<T>& g, cudaStream_t stream) {
  if (g.rows == 0) return;
  const auto slices = static_cast<unsigned>(std::min<int64_t>(g.blocks, g.rows));
  float* const partial = g.bias_grad ? g.partial : nullptr;
  const bool are_aligned =
      is_aligned(g.dx) && is_aligned(g.dy) && is_aligned(g.x) && is_aligned(g.bias) && is_aligned(partial);
  with_pack<T>(g.f, are_aligned, [&](auto n) {
    with_form(g.form, [&]<class Form>(Form) {
      launch_packs(gelu_backward_packs<T, n, Form>, slices, g.f / n, stream, g.dx, partial, g.dy, g.x, g.bias,
                   g.rows, g.f, slices);
    });
  });
  if (partial != nullptr) add_partial_sums(g.bias_grad, partial, static_cast<int>(slices), g.f, stream);
}
template void gelu_backward(const GeluBackward<float>&, cudaStream_t);
template void gelu_backward(const GeluBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
