#include "shardwise/cuda/heads.h"

#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/partial.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/cuda/uploaded.h"
#include "shardwise/kernels/qk_norm_cuda.h"
#include "shardwise/kernels/rotary_cuda.h"

namespace shardwise::cuda {

using at::Tensor;

namespace {

/// The split of a q|k|v product [s, b, (a + 2k)·d], with its arrays on the device.
class UploadedSplit {
 public:
  UploadedSplit(const kernels::HeadSplit& split, const Tensor& qkv) : split_(split), qkv_(qkv) {
    const int64_t heads = split.heads + 2 * split.kv_heads;
    TORCH_CHECK_VALUE(qkv.size(0) * qkv.size(1) * heads < int64_t{1} << 31,
                      "heads: a GPU's q, k and v must have fewer than 2^31 heads; got ", qkv.size(0), " x ",
                      qkv.size(1), " x ", heads, " [SW0842]");
    first_positions_ = split.first_positions_on_device;
    if (!first_positions_.defined() && !split.first_positions.empty())
      first_positions_ = uploaded(split.first_positions, qkv);
    if (split.valid.empty()) return;
    std::vector<int64_t> begins;
    for (const base::Range& rows : split.valid) begins.push_back(rows.begin);
    valid_begins_ = uploaded(begins, qkv);
  }

  kernels::cuda::HeadSplit split() const {
    return {.s = qkv_.size(0),
            .b = static_cast<int>(qkv_.size(1)),
            .heads = static_cast<int>(split_.heads),
            .kv_heads = static_cast<int>(split_.kv_heads),
            .head_dim = static_cast<int>(split_.head_dim),
            .cos = elements<float>(split_.tables.cos),
            .sin = elements<float>(split_.tables.sin),
            .half = static_cast<int>(split_.tables.cos.size(1)),
            .first_position = split_.first_position,
            .first_positions = elements<int64_t>(first_positions_),
            .valid_begins = elements<int64_t>(valid_begins_)};
  }

 private:
  const kernels::HeadSplit& split_;
  const Tensor& qkv_;
  Tensor first_positions_, valid_begins_;
};

}  // namespace

void Kernels::split_rotary(const kernels::Qkv& heads, const Tensor& qkv,
                           const kernels::HeadSplit& split) const {
  if (qkv.numel() == 0) return;
  const UploadedSplit on_device(split, qkv);
  with_type("split_rotary", qkv.scalar_type(), [&]<class T>(T) {
    kernels::cuda::split_rotary<T>({heads_of<T>(heads.q), heads_of<T>(heads.k), heads_of<T>(heads.v),
                                    elements<T>(qkv), on_device.split()},
                                   current_stream());
  });
}

void Kernels::split_rotary_backward(const Tensor& d_qkv, const kernels::Qkv& grads,
                                    const kernels::HeadSplit& split) const {
  if (d_qkv.numel() == 0) return;
  const UploadedSplit on_device(split, d_qkv);
  with_trained_type("split_rotary_backward", d_qkv.scalar_type(), [&]<class T>(T) {
    kernels::cuda::split_rotary_backward<T>(
        {elements_<T>(d_qkv), heads_of<const T>(grads.q), heads_of<const T>(grads.k),
         heads_of<const T>(grads.v), on_device.split()},
        current_stream());
  });
}

void Kernels::split_norm_rotary(const kernels::Qkv& heads, const Tensor& qkv, const kernels::HeadSplit& split,
                                const kernels::QkNormParams& norm) const {
  if (qkv.numel() == 0) return;
  const UploadedSplit on_device(split, qkv);
  with_type("split_norm_rotary", qkv.scalar_type(), [&]<class T>(T) {
    kernels::cuda::qk_norm<T>({.split = on_device.split(),
                               .q = heads_of<T>(heads.q),
                               .k = heads_of<T>(heads.k),
                               .v = {nullptr, 0, 0, 0},
                               .qkv = elements<T>(qkv),
                               .q_weight = elements<T>(norm.weights.q),
                               .k_weight = elements<T>(norm.weights.k),
                               .eps = static_cast<float>(norm.eps),
                               .blocks = 8 * multiprocessors()},
                              current_stream());
  });
}

void Kernels::split_norm_rotary_backward(const Tensor& d_qkv, const kernels::QkNormWeights& weight_grads_,
                                         const kernels::Qkv& grads, const Tensor& qkv,
                                         const kernels::HeadSplit& split,
                                         const kernels::QkNormParams& norm) const {
  if (qkv.numel() == 0) return;
  const UploadedSplit on_device(split, qkv);
  const bool has_sums = weight_grads_.q.defined() || weight_grads_.k.defined();
  const Partial partial(has_sums, qkv.size(0) * qkv.size(1), {2, split.head_dim}, qkv);
  with_trained_type("split_norm_rotary_backward", qkv.scalar_type(), [&]<class T>(T) {
    kernels::cuda::qk_norm_backward<T>({.split = on_device.split(),
                                        .d_qkv = elements_<T>(d_qkv),
                                        .q_weight_grad = elements_<float>(weight_grads_.q),
                                        .k_weight_grad = elements_<float>(weight_grads_.k),
                                        .partial = partial.data(),
                                        .dq = heads_of<const T>(grads.q),
                                        .dk = heads_of<const T>(grads.k),
                                        .dv = heads_of<const T>(grads.v),
                                        .qkv = elements<T>(qkv),
                                        .q_weight = elements<T>(norm.weights.q),
                                        .k_weight = elements<T>(norm.weights.k),
                                        .eps = static_cast<float>(norm.eps),
                                        .blocks = partial.blocks()},
                                       current_stream());
  });
}

}  // namespace shardwise::cuda
