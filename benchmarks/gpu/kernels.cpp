// GPU kernels of training and decoding in bf16, as C functions for benchmarks/gpu_kernels.py. Each queues its
// work in `stream`.
#include <cuda_bf16.h>

#include "shardwise/kernels/adamw_cuda.h"
#include "shardwise/kernels/gelu_cuda.h"
#include "shardwise/kernels/layer_norm_cuda.h"
#include "shardwise/kernels/quantized_row_product_cuda.h"
#include "shardwise/kernels/rms_norm_cuda.h"
#include "shardwise/kernels/rotary_cuda.h"
#include "shardwise/kernels/row_product_cuda.h"
#include "shardwise/kernels/swiglu_cuda.h"

namespace {

namespace cuda = shardwise::kernels::cuda;
using Bf16 = __nv_bfloat16;

constexpr float kEps = 1e-5f;

}  // namespace

extern "C" {

void bench_rms_norm(Bf16* y, float* rstd, const Bf16* x, const Bf16* weight, int64_t rows, int h,
                    cudaStream_t stream) {
  cuda::rms_norm<Bf16>({y, rstd, x, weight, rows, h, kEps}, stream);
}

/// `partial`: [blocks, h].
void bench_rms_norm_backward(Bf16* dx, float* weight_grad, float* partial, const Bf16* dy, const Bf16* x,
                             const Bf16* weight, const float* rstd, int64_t rows, int h, int blocks,
                             cudaStream_t stream) {
  cuda::rms_norm_backward<Bf16>({dx, weight_grad, partial, dy, x, weight, rstd, rows, h, blocks}, stream);
}

void bench_layer_norm(Bf16* y, float* mean, float* rstd, const Bf16* x, const Bf16* weight, const Bf16* bias,
                      int64_t rows, int h, cudaStream_t stream) {
  cuda::layer_norm<Bf16>({y, mean, rstd, x, weight, bias, rows, h, kEps}, stream);
}

/// `partial`: [2, blocks, h].
void bench_layer_norm_backward(Bf16* dx, float* weight_grad, float* bias_grad, float* partial, const Bf16* dy,
                               const Bf16* x, const Bf16* weight, const float* mean, const float* rstd,
                               int64_t rows, int h, int blocks, cudaStream_t stream) {
  cuda::layer_norm_backward<Bf16>(
      {dx, weight_grad, bias_grad, partial, dy, x, weight, mean, rstd, rows, h, blocks}, stream);
}

void bench_swiglu(Bf16* y, const Bf16* gate_up, int64_t rows, int f, cudaStream_t stream) {
  cuda::swiglu<Bf16>({y, gate_up, rows, f}, stream);
}

void bench_swiglu_backward(Bf16* d_gate_up, const Bf16* dy, const Bf16* gate_up, int64_t rows, int f,
                           cudaStream_t stream) {
  cuda::swiglu_backward<Bf16>({d_gate_up, dy, gate_up, rows, f}, stream);
}

void bench_bias_gelu(Bf16* y, const Bf16* x, const Bf16* bias, int64_t rows, int f, cudaStream_t stream) {
  cuda::gelu<Bf16>({y, x, bias, rows, f, cuda::GeluForm::tanh}, stream);
}

/// `partial`: [blocks, f].
void bench_bias_gelu_backward(Bf16* dx, float* bias_grad, float* partial, const Bf16* dy, const Bf16* x,
                              const Bf16* bias, int64_t rows, int f, int blocks, cudaStream_t stream) {
  cuda::gelu_backward<Bf16>({dx, bias_grad, partial, dy, x, bias, rows, f, blocks, cuda::GeluForm::tanh},
                            stream);
}

/// Splits qkv [s, b, (heads + 2 · kv_heads) · d] into q, k and v [b, heads, s, d], q and k rotated. Shapes:
/// `cos`, `sin` [s, d / 2].
void bench_rotary(Bf16* q, Bf16* k, Bf16* v, const Bf16* qkv, const float* cos, const float* sin, int64_t s,
                  int b, int heads, int kv_heads, int d, cudaStream_t stream) {
  const cuda::HeadSplit split{s, b, heads, kv_heads, d, cos, sin, d / 2, 0, nullptr, nullptr};
  cuda::split_rotary<Bf16>({cuda::contiguous_heads(q, heads, s, d), cuda::contiguous_heads(k, kv_heads, s, d),
                            cuda::contiguous_heads(v, kv_heads, s, d), qkv, split},
                           stream);
}

/// One tensor of fp32 weights without decay: step `number`, learning rate 1e-3, betas 0.9 and 0.999.
/// Scratch: `tensor`, of bench_adamw_bytes, and `first` [2] are filled by the host.
void bench_adamw(const void* tensor, const int64_t* first, int64_t chunks, cudaStream_t stream) {
  const float rate1 = 0.1f, rate2 = 0.001f, step_size = 1e-3f / rate1;
  cuda::adamw<float>({static_cast<const cuda::AdamWTensor<float>*>(tensor),
                      {first, 1, chunks},
                      nullptr,
                      rate1,
                      rate2,
                      0.999f,
                      step_size,
                      /*inverse_root=*/31.622776f,
                      1e-8f,
                      /*zeroes_gradient=*/false},
                     stream);
}

/// Writes what bench_adamw reads of the weights to host memory, of bench_adamw_bytes(); returns the chunks.
int64_t bench_adamw_tensor(void* tensor, float* weights, float* gradient, float* exp_avg, float* exp_avg_sq,
                           int64_t n) {
  *static_cast<cuda::AdamWTensor<float>*>(tensor) = {weights, gradient, exp_avg, exp_avg_sq,
                                                     nullptr, n,        1.0f};
  const int64_t sizes[] = {n};
  return cuda::first_chunks(sizes).back();
}
int64_t bench_adamw_bytes() {
  return sizeof(cuda::AdamWTensor<float>);
}

void bench_row_product(Bf16* y, const Bf16* x, const Bf16* w, int64_t m, int n, int k, cudaStream_t stream) {
  cuda::row_product<Bf16>({y, x, w, m, n, k}, stream);
}

/// Symmetric, in groups of `group_size`. Shapes: `qweight` [n, k · bits / 32], `scales` [n, k / group_size].
void bench_quantized_row_product(Bf16* y, const Bf16* x, const uint32_t* qweight, const float* scales,
                                 int64_t m, int n, int k, int bits, int group_size, cudaStream_t stream) {
  const cuda::QuantizedWeight w{qweight, scales,        nullptr,        nullptr, n, k,
                                bits,    k * bits / 32, k / group_size, 0,       0, group_size};
  cuda::quantized_row_product<Bf16>({y, x, w, m}, stream);
}
}
