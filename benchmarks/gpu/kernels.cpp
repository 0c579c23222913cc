// GPU kernels of training and decoding in bf16, as C functions for benchmarks/gpu_kernels.py. Each queues its
// work in `stream`.
#include <cuda_bf16.h>

#include "shardwise/kernels/adamw_cuda.h"
#include "shardwise/kernels/add_norm_cuda.h"
#include "shardwise/kernels/cached_attention_cuda.h"
#include "shardwise/kernels/cross_entropy_cuda.h"
#include "shardwise/kernels/embedding_cuda.h"
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

void bench_add_rms_norm(Bf16* residual, Bf16* norm, float* rstd, const Bf16* x, const Bf16* y,
                        const Bf16* weight, int64_t rows, int h, cudaStream_t stream) {
  cuda::add_rms_norm<Bf16>({residual, norm, nullptr, rstd, x, y, nullptr, weight, nullptr, rows, h, kEps},
                           stream);
}

void bench_embedding(Bf16* y, const int64_t* ids, const Bf16* table, int64_t count, int v, int h,
                     cudaStream_t stream) {
  cuda::embedding<Bf16>({y, ids, table, count, 0, v, h}, stream);
}

/// Shapes: `terms` [3, n], `sums` [n].
void bench_cross_entropy(float* sums, float* terms, const Bf16* logits, const int64_t* labels, int64_t n,
                         int v, cudaStream_t stream) {
  cuda::loss_terms<Bf16>(terms, 3, {logits, labels, n, v, 0}, stream);
  cuda::log_sums(sums, terms, 1, 3, n, stream);
}

void bench_cross_entropy_backward(Bf16* logits, const int64_t* labels, const float* lse, int64_t n, int v,
                                  cudaStream_t stream) {
  cuda::cross_entropy_backward<Bf16>({logits, labels, lse, n, v, 0, -100, 1.0f, 0, 1.0f, 0}, stream);
}

/// Attends to n caches. Scratch: `sequences` by bench_cached_sequences, `workspace` of
/// bench_attention_workspace bytes.
void bench_cached_attention(Bf16* out, float* workspace, const Bf16* q, const Bf16* k, const Bf16* v,
                            const void* sequences, int n, int heads, int kv_heads, int d, int64_t capacity,
                            cudaStream_t stream) {
  cuda::cached_attention<Bf16, Bf16>({.out = out,
                                      .workspace = workspace,
                                      .q = cuda::contiguous_heads(q, heads, 1, d),
                                      .k = cuda::contiguous_heads(k, kv_heads, 1, d),
                                      .v = cuda::contiguous_heads(v, kv_heads, 1, d),
                                      .sequences = static_cast<const cuda::CachedSequence<Bf16>*>(sequences),
                                      .n = n,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_dim = d,
                                      .group = heads / kv_heads,
                                      .first = 0,
                                      .window = 0,
                                      .splits = cuda::key_splits(capacity, 0)},
                                     stream);
}

int64_t bench_attention_workspace(int n, int heads, int d, int64_t capacity) {
  return cuda::attention_workspace_bytes(n, heads, d, cuda::key_splits(capacity, 0));
}

/// Writes what bench_cached_attention reads of the full caches `keys` and `values` [n, kv_heads, capacity, d]
/// to host memory, of n times bench_cached_sequence_bytes(). The new token takes the last place.
void bench_cached_sequences(void* sequences, Bf16* keys, Bf16* values, int64_t n, int64_t of_sequence,
                            int64_t capacity) {
  auto* const all = static_cast<cuda::CachedSequence<Bf16>*>(sequences);
  for (int64_t i = 0; i < n; ++i)
    all[i] = {keys + i * of_sequence, values + i * of_sequence, nullptr, nullptr, capacity, capacity - 1};
}
int64_t bench_cached_sequence_bytes() {
  return sizeof(cuda::CachedSequence<Bf16>);
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
