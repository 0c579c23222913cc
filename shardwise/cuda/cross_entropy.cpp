#include "shardwise/kernels/cross_entropy_cuda.h"

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"

namespace shardwise::cuda {

using at::Tensor;

void Kernels::loss_terms(const Tensor& terms, const Tensor& logits, const Tensor& labels,
                         int64_t begin) const {
  if (labels.numel() == 0) return;
  with_trained_type("loss_terms", logits.scalar_type(), [&]<class T>(T) {
    kernels::cuda::loss_terms<T>(
        elements_<float>(terms), static_cast<int>(terms.size(0)),
        {elements<T>(logits), elements<int64_t>(labels), logits.size(0), width_of(logits), begin},
        current_stream());
  });
}

void Kernels::log_sums(const Tensor& sums, const Tensor& terms) const {
  if (sums.numel() == 0) return;
  with_trained_type("log_sums", terms.scalar_type(), [&]<class T>(T) {
    kernels::cuda::log_sums(elements_<float>(sums), elements<float>(terms), static_cast<int>(terms.size(0)),
                            static_cast<int>(terms.size(1)), terms.size(2), current_stream());
  });
}

void Kernels::cross_entropy_backward(const Tensor& logits_, const Tensor& labels, int64_t begin,
                                     const Tensor& lse, const kernels::LossGradient& gradient) const {
  if (logits_.numel() == 0) return;
  with_trained_type("cross_entropy_backward", logits_.scalar_type(), [&]<class T>(T) {
    kernels::cuda::cross_entropy_backward<T>(
        {.logits = elements_<T>(logits_),
         .labels = elements<int64_t>(labels),
         .lse = elements<float>(lse),
         .n = logits_.size(0),
         .v = width_of(logits_),
         .begin = begin,
         .ignore_index = gradient.ignore_index,
         .scale = static_cast<float>(gradient.scale),
         .z_loss = static_cast<float>(gradient.loss.z_loss),
         .label_weight = static_cast<float>(gradient.loss.label_weight()),
         .class_weight = static_cast<float>(gradient.loss.class_weight())},
        current_stream());
  });
}

}  // namespace shardwise::cuda
