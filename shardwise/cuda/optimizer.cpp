#include <ATen/ops/empty.h>

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/cuda/uploaded.h"
#include "shardwise/kernels/adamw_cuda.h"
#include "shardwise/kernels/adamw_factors.h"
#include "shardwise/kernels/square_sum_cuda.h"

namespace shardwise::cuda {

using at::Tensor;

namespace {

/// The chunks of many tensors, with their table on the device.
struct UploadedChunks {
  UploadedChunks(std::span<const int64_t> sizes, const Tensor& like)
      : first(kernels::cuda::first_chunks(sizes)), table(uploaded(first, like)) {}
  kernels::cuda::Chunks chunks() const {
    return {elements<int64_t>(table), static_cast<int>(first.size()) - 1, first.back()};
  }

  std::vector<int64_t> first;
  Tensor table;
};

template <class T>
std::vector<kernels::cuda::AdamWTensor<T>> table_of(const std::vector<kernels::AdamWTensors>& tensors,
                                                    const std::vector<double>& weight_decays,
                                                    double learning_rate) {
  std::vector<kernels::cuda::AdamWTensor<T>> table;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const kernels::AdamWTensors& one = tensors[i];
    table.push_back({elements_<float>(one.weights), elements_<float>(one.gradient),
                     elements_<float>(one.exp_avg), elements_<float>(one.exp_avg_sq),
                     elements_<T>(one.rounded), one.weights.numel(),
                     static_cast<float>(1 - learning_rate * weight_decays[i])});
  }
  return table;
}

}  // namespace

void Kernels::square_sum(const Tensor& sum, const std::vector<Tensor>& tensors) const {
  std::vector<kernels::cuda::SummedTensor> table;
  std::vector<int64_t> sizes;
  for (const Tensor& tensor : tensors) {
    with_trained_type("square_sum", tensor.scalar_type(), [](auto) {});
    table.push_back({elements<float>(tensor), tensor.numel()});
    sizes.push_back(tensor.numel());
  }
  const UploadedChunks chunks(sizes, sum);
  const Tensor tables = uploaded(table, sum), partial = at::empty({chunks.first.back()}, sum.options());
  kernels::cuda::square_sum({elements_<double>(sum), elements_<double>(partial),
                             elements<kernels::cuda::SummedTensor>(tables), chunks.chunks()},
                            current_stream());
}

void Kernels::clip_scale(const Tensor& scale, const Tensor& square_sum, const Tensor& loss,
                         double max_norm) const {
  kernels::cuda::clip_scale(elements_<float>(scale), elements<double>(square_sum), elements<double>(loss),
                            max_norm, current_stream());
}

void Kernels::adamw(const std::vector<kernels::AdamWTensors>& tensors,
                    const std::vector<double>& weight_decays, const Tensor& scale,
                    const kernels::AdamWStep& step) const {
  if (tensors.empty()) return;
  const Tensor& like = tensors[0].exp_avg;
  std::vector<int64_t> sizes;
  for (const kernels::AdamWTensors& one : tensors) sizes.push_back(one.weights.numel());
  const UploadedChunks chunks(sizes, like);
  const auto by = kernels::factors_of<float>(step);
  const Tensor& typed = tensors[0].rounded.defined() ? tensors[0].rounded : tensors[0].weights;
  with_trained_type("adamw", typed.scalar_type(), [&]<class T>(T) {
    const Tensor table = uploaded(table_of<T>(tensors, weight_decays, step.learning_rate), like);
    kernels::cuda::adamw<T>({.tensors = elements<kernels::cuda::AdamWTensor<T>>(table),
                             .chunks = chunks.chunks(),
                             .gradient_scale = elements<float>(scale),
                             .rate1 = by.rate1,
                             .rate2 = by.rate2,
                             .beta2 = by.beta2,
                             .step_size = by.step_size,
                             .inverse_root = by.inverse_root,
                             .eps = by.eps,
                             .zeroes_gradient = step.zeroes_gradient},
                            current_stream());
  });
}

int64_t Kernels::peak_bytes() const {
  return cuda::peak_bytes();
}

std::unique_ptr<kernels::DeviceGraph> Kernels::capture(const std::function<void()>& queue_work) const {
  return cuda::capture(queue_work);
}

void Kernels::add_weight_grad(const Tensor& main_grad_, const Tensor& dy, const Tensor& x) const {
  cuda::add_weight_grad(main_grad_, dy, x);
}

}  // namespace shardwise::cuda
