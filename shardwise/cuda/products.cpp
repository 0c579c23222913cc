#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/kernels/dequantize_cuda.h"
#include "shardwise/kernels/quantized_row_product_cuda.h"
#include "shardwise/kernels/row_product_cuda.h"

namespace shardwise::cuda {

using at::Tensor;

namespace {

kernels::cuda::QuantizedWeight weight_of(const kernels::QuantizedRows& w) {
  return {.qweight = reinterpret_cast<const uint32_t*>(elements<int32_t>(w.qweight)),
          .scales = elements<float>(w.scales),
          .zero_points = elements<uint8_t>(w.zero_points),
          .group_index = elements<int32_t>(w.group_index),
          .n = static_cast<int>(w.rows()),
          .k = static_cast<int>(w.width),
          .bits = static_cast<int>(w.bits),
          .words = width_of(w.qweight),
          .groups = width_of(w.scales),
          .first_value = static_cast<int>(w.first_value),
          .first_in_group = static_cast<int>(w.first_in_group),
          .group_size = static_cast<int>(w.group_size)};
}

}  // namespace

void Kernels::row_product(const Tensor& y, const Tensor& x, const Tensor& w) const {
  if (y.numel() == 0) return;
  with_type("row_product", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::row_product<T>(
        {elements_<T>(y), elements<T>(x), elements<T>(w), x.size(0), width_of(y), width_of(x)},
        current_stream());
  });
}

void Kernels::quantized_row_product(const Tensor& y, const Tensor& x, const kernels::QuantizedRows& w) const {
  if (y.numel() == 0) return;
  with_trained_type("quantized_row_product", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::quantized_row_product<T>({elements_<T>(y), elements<T>(x), weight_of(w), x.size(0)},
                                            current_stream());
  });
}

void Kernels::dequantize(const Tensor& w, const kernels::QuantizedRows& rows) const {
  with_type("dequantize", w.scalar_type(), [&]<class T>(T) {
    kernels::cuda::dequantize<T>({elements_<T>(w), /*ids=*/nullptr, w.size(0), /*begin=*/0, weight_of(rows)},
                                 current_stream());
  });
}

void Kernels::quantized_embedding(const Tensor& y, const Tensor& ids, const kernels::QuantizedRows& table,
                                  int64_t begin) const {
  with_type("quantized_embedding", y.scalar_type(), [&]<class T>(T) {
    kernels::cuda::dequantize<T>(
        {elements_<T>(y), elements<int64_t>(ids), ids.numel(), begin, weight_of(table)}, current_stream());
  });
}

}  // namespace shardwise::cuda
