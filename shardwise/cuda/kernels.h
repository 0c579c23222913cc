// The table of kernels (kernels/device.h) by those of kernels/*_cuda.h.
#pragma once
#include "shardwise/kernels/device.h"

namespace shardwise::cuda {

/// The kernels of a GPU, or of the emulator.
class Kernels final : public kernels::DeviceKernels {
 public:
  int64_t peak_bytes() const override;
  std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void()>& queue_work) const override;

  void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight,
                double eps) const override;
  void rms_norm_backward(const at::Tensor& dx, const at::Tensor& weight_grad_, const at::Tensor& dy,
                         const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& rstd) const override;
  void layer_norm(const at::Tensor& y, const kernels::RowMoments& moments, const at::Tensor& x,
                  const kernels::Affine& affine, double eps) const override;
  void layer_norm_backward(const at::Tensor& dx, const kernels::Affine& gradients_, const at::Tensor& dy,
                           const at::Tensor& x, const at::Tensor& weight,
                           const kernels::RowMoments& moments) const override;
  void add_rms_norm(const at::Tensor& residual, const at::Tensor& norm, const at::Tensor& x, const void* y,
                    const kernels::AddRmsNorm& add) const override;

  void split_rotary(const kernels::Qkv& heads, const at::Tensor& qkv,
                    const kernels::HeadSplit& split) const override;
  void split_rotary_backward(const at::Tensor& d_qkv, const kernels::Qkv& grads,
                             const kernels::HeadSplit& split) const override;
  void split_norm_rotary(const kernels::Qkv& heads, const at::Tensor& qkv, const kernels::HeadSplit& split,
                         const kernels::QkNormParams& norm) const override;
  void split_norm_rotary_backward(const at::Tensor& d_qkv, const kernels::QkNormWeights& weight_grads_,
                                  const kernels::Qkv& grads, const at::Tensor& qkv,
                                  const kernels::HeadSplit& split,
                                  const kernels::QkNormParams& norm) const override;

  void swiglu(const at::Tensor& y, const at::Tensor& gate_up) const override;
  void swiglu_backward(const at::Tensor& d_gate_up, const at::Tensor& dy,
                       const at::Tensor& gate_up) const override;
  void gelu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& bias,
            kernels::Gelu form) const override;
  void gelu_backward(const at::Tensor& dx, const at::Tensor& bias_grad_, const at::Tensor& dy,
                     const at::Tensor& x, const at::Tensor& bias, kernels::Gelu form) const override;
  void dropout(const at::Tensor& y, const at::Tensor& x, double p, kernels::RandomKey key,
               int64_t first_element) const override;

  void embedding(const at::Tensor& y, const at::Tensor& ids, const at::Tensor& table,
                 int64_t begin) const override;
  void embedding_backward(const at::Tensor& table_grad_, const at::Tensor& dy, const at::Tensor& ids,
                          int64_t begin) const override;
  void loss_terms(const at::Tensor& terms, const at::Tensor& logits, const at::Tensor& labels,
                  int64_t begin) const override;
  void log_sums(const at::Tensor& sums, const at::Tensor& terms) const override;
  void cross_entropy_backward(const at::Tensor& logits_, const at::Tensor& labels, int64_t begin,
                              const at::Tensor& lse, const kernels::LossGradient& gradient) const override;

  void row_product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) const override;
  void quantized_row_product(const at::Tensor& y, const at::Tensor& x,
                             const kernels::QuantizedRows& w) const override;
  void dequantize(const at::Tensor& w, const kernels::QuantizedRows& rows) const override;
  void quantized_embedding(const at::Tensor& y, const at::Tensor& ids, const kernels::QuantizedRows& table,
                           int64_t begin) const override;
  bool has_fused_attention(const kernels::Qkv& qkv, const kernels::AttentionOptions& options) const override;
  kernels::AttentionResult fused_attention(const kernels::Qkv& qkv,
                                           const kernels::AttentionOptions& options) const override;
  kernels::Qkv fused_attention_backward(const at::Tensor& d_out, const kernels::Qkv& qkv,
                                        const kernels::AttentionResult& forward,
                                        const kernels::AttentionOptions& options) const override;
  at::Tensor cache_table(const std::vector<kernels::CachedHeads>& caches) const override;
  void cached_attention(const at::Tensor& out, const kernels::Qkv& heads,
                        const std::vector<kernels::CachedHeads>& caches,
                        const kernels::AttentionOptions& options,
                        const kernels::CacheTable& table) const override;
  void logit_keys(const at::Tensor& keys, const at::Tensor& logits) const override;

  void add_weight_grad(const at::Tensor& main_grad_, const at::Tensor& dy,
                       const at::Tensor& x) const override;

  void square_sum(const at::Tensor& sum, const std::vector<at::Tensor>& tensors) const override;
  void clip_scale(const at::Tensor& scale, const at::Tensor& square_sum, const at::Tensor& loss,
                  double max_norm) const override;
  void adamw(const std::vector<kernels::AdamWTensors>& tensors, const std::vector<double>& weight_decays,
             const at::Tensor& scale, const kernels::AdamWStep& step) const override;
};

}  // namespace shardwise::cuda
