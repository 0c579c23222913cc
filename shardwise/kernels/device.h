// The kernels of devices other than the CPU: one table for each type of device (docs/adr/0033).
//
// Functions of this directory check their arguments, allocate their results, and call the table if the
// tensors are on such a device.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "shardwise/kernels/adamw.h"
#include "shardwise/kernels/add_rms_norm.h"
#include "shardwise/kernels/cached_attention.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/qk_norm.h"
#include "shardwise/kernels/quantized_rows.h"
#include "shardwise/kernels/random.h"
#include "shardwise/kernels/rotary.h"

namespace shardwise::kernels {

/// Work that was recorded once, to be queued at once, again and again: it reads and writes the same memory.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues all of it in the device's current stream.
  virtual void replay() = 0;
};

/// The kernels of a type of device. Each is what the function of the same name computes (rms_norm.h, …):
/// first its results, which are allocated and contiguous, then its arguments, which are checked. Arguments
/// are contiguous except heads, whose elements are; an undefined tensor is not wanted, or absent. Gradients
/// of parameters are added to.
///
/// A call queues its work in the device's current stream, and waits for nothing.
/// Errors: c10::ValueError if the device has no kernel for the dtype.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  /// Returns the most bytes that this process's tensors on the device had at a time.
  virtual int64_t peak_bytes() const = 0;
  /// See kernels::capture.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& queue_work) const = 0;

  virtual void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x,
                        const at::Tensor& weight, double eps) const = 0;
  virtual void rms_norm_backward(const at::Tensor& dx, const at::Tensor& weight_grad_, const at::Tensor& dy,
                                 const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& rstd) const = 0;
  virtual void layer_norm(const at::Tensor& y, const RowMoments& moments, const at::Tensor& x,
                          const Affine& affine, double eps) const = 0;
  virtual void layer_norm_backward(const at::Tensor& dx, const Affine& gradients_, const at::Tensor& dy,
                                   const at::Tensor& x, const at::Tensor& weight,
                                   const RowMoments& moments) const = 0;
  /// add_rms_norm_out of one partial sum, `y`, of x's shape and dtype, in the device's memory.
  virtual void add_rms_norm(const at::Tensor& residual, const at::Tensor& norm, const at::Tensor& x,
                            const void* y, const AddRmsNorm& add) const = 0;

  virtual void split_rotary(const Qkv& heads, const at::Tensor& qkv, const HeadSplit& split) const = 0;
  virtual void split_rotary_backward(const at::Tensor& d_qkv, const Qkv& grads,
                                     const HeadSplit& split) const = 0;
  /// Does not write `heads.v`, which is in qkv.
  virtual void split_norm_rotary(const Qkv& heads, const at::Tensor& qkv, const HeadSplit& split,
                                 const QkNormParams& norm) const = 0;
  virtual void split_norm_rotary_backward(const at::Tensor& d_qkv, const QkNormWeights& weight_grads_,
                                          const Qkv& grads, const at::Tensor& qkv, const HeadSplit& split,
                                          const QkNormParams& norm) const = 0;

  virtual void swiglu(const at::Tensor& y, const at::Tensor& gate_up) const = 0;
  virtual void swiglu_backward(const at::Tensor& d_gate_up, const at::Tensor& dy,
                               const at::Tensor& gate_up) const = 0;
  virtual void gelu(const at::Tensor& y, const at::Tensor& x, const at::Tensor& bias, Gelu form) const = 0;
  virtual void gelu_backward(const at::Tensor& dx, const at::Tensor& bias_grad_, const at::Tensor& dy,
                             const at::Tensor& x, const at::Tensor& bias, Gelu form) const = 0;
  virtual void dropout(const at::Tensor& y, const at::Tensor& x, double p, RandomKey key,
                       int64_t first_element) const = 0;

  virtual void embedding(const at::Tensor& y, const at::Tensor& ids, const at::Tensor& table,
                         int64_t begin) const = 0;
  virtual void embedding_backward(const at::Tensor& table_grad_, const at::Tensor& dy, const at::Tensor& ids,
                                  int64_t begin) const = 0;
  virtual void loss_terms(const at::Tensor& terms, const at::Tensor& logits, const at::Tensor& labels,
                          int64_t begin) const = 0;
  virtual void log_sums(const at::Tensor& sums, const at::Tensor& terms) const = 0;
  virtual void cross_entropy_backward(const at::Tensor& logits_, const at::Tensor& labels, int64_t begin,
                                      const at::Tensor& lse, const LossGradient& gradient) const = 0;

  /// Computes y = x Wᵀ for a few rows, each with the bits that it has alone. Shapes: `x` [m, k], `w` [n, k],
  /// `y` [m, n], of one dtype.
  virtual void row_product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) const = 0;
  virtual void quantized_row_product(const at::Tensor& y, const at::Tensor& x,
                                     const QuantizedRows& w) const = 0;
  /// Writes the values of all rows to `w` [rows, width], computed in fp32 and rounded once.
  virtual void dequantize(const at::Tensor& w, const QuantizedRows& rows) const = 0;
  /// Looks up rows: y[i] = row ids[i] − begin, or zeros if there is none.
  virtual void quantized_embedding(const at::Tensor& y, const at::Tensor& ids, const QuantizedRows& table,
                                   int64_t begin) const = 0;
  /// Returns whether fused_attention computes these. If not, attention is by products of whole matrices.
  virtual bool has_fused_attention(const Qkv& qkv, const AttentionOptions& options) const = 0;
  /// Computes attention (attention.h) without a matrix of scores.
  virtual AttentionResult fused_attention(const Qkv& qkv, const AttentionOptions& options) const = 0;
  virtual Qkv fused_attention_backward(const at::Tensor& d_out, const Qkv& qkv,
                                       const AttentionResult& forward,
                                       const AttentionOptions& options) const = 0;
  /// Returns on the host what cached_attention reads on the device of each cache. Shapes: [n, bytes].
  virtual at::Tensor cache_table(const std::vector<CachedHeads>& caches) const = 0;
  /// Appends to the caches and attends to them. Shapes: `out` [n, 1, a·d].
  virtual void cached_attention(const at::Tensor& out, const Qkv& heads,
                                const std::vector<CachedHeads>& caches, const AttentionOptions& options,
                                const CacheTable& table) const = 0;
  virtual void logit_keys(const at::Tensor& keys, const at::Tensor& logits) const = 0;

  /// Computes main_grad += dyᵀ·x for bf16 `dy` and `x`, accumulated in fp32.
  virtual void add_weight_grad(const at::Tensor& main_grad_, const at::Tensor& dy,
                               const at::Tensor& x) const = 0;

  /// Computes sum = Σ x² over all tensors, fp32 and contiguous. Shapes: `sum` [1] fp64.
  virtual void square_sum(const at::Tensor& sum, const std::vector<at::Tensor>& tensors) const = 0;
  /// Computes the factor that clips gradients (parallel/gradient_sync.h) from the sum of their squares; NaN
  /// if that or the loss is not finite. Shapes: `scale` [1] fp32, `square_sum`, `loss` [1] fp64.
  virtual void clip_scale(const at::Tensor& scale, const at::Tensor& square_sum, const at::Tensor& loss,
                          double max_norm) const = 0;
  /// Updates all tensors, each with its own weight decay, and with `scale` [1] fp32, which replace those of
  /// `step`; nothing if the scale is NaN. All have rounded weights of one dtype, or none has.
  virtual void adamw(const std::vector<AdamWTensors>& tensors, const std::vector<double>& weight_decays,
                     const at::Tensor& scale, const AdamWStep& step) const = 0;
};

/// Sets the kernels of a type of device, which live until the process ends.
void set_device_kernels(c10::DeviceType type, const DeviceKernels& kernels);

/// Returns the most bytes that this process's tensors on `device` had at a time.
int64_t peak_bytes(at::Device device);

/// Returns the kernels of `device`, which is not the CPU.
const DeviceKernels& kernels_on(at::Device device);

/// Records the work that `queue_work` queues on `device`, which is not the CPU, without running it. Tensors
/// that it allocates live as long as the graph, or longer; all others that the work uses must. It must not
/// make the host wait for the device, nor copy from the host. Errors: c10::Error if it does.
std::unique_ptr<DeviceGraph> capture(at::Device device, const std::function<void()>& queue_work);

/// Returns the kernels of the device that all defined tensors are on.
/// Errors: c10::ValueError if they are on several, or if theirs has no kernels.
const DeviceKernels& kernels_of_device(const char* op, std::initializer_list<at::Tensor> tensors);

/// As kernels_of_device, but returns null for tensors on the CPU, whose kernels are not in a table.
template <class... Tensors>
const DeviceKernels* device_of(const char* op, const Tensors&... tensors) {
  if (((!tensors.defined() || tensors.is_cpu()) && ...)) return nullptr;
  return &kernels_of_device(op, {tensors...});
}

}  // namespace shardwise::kernels
