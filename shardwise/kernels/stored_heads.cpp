#include "shardwise/kernels/stored_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "shardwise/kernels/device.h"
#include "shardwise/kernels/stored_heads_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {

NewRows NewRows::of(const at::Tensor& heads) {
  return {heads.const_data_ptr(), heads.scalar_type(), heads.size(1), heads.stride(0), heads.stride(1)};
}

void store_rows_(const StoredHeads& to, int64_t position, const NewRows& from) {
  const int64_t heads = to.rows.size(0), capacity = to.rows.size(1), d = to.rows.size(2);
  with_element_type("attention", from.dtype, [&]<class T>(T) {
    const auto loops = stored_row_loops<T>();
    for_ranges(heads * from.rows, d, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / from.rows, row = i % from.rows;
        const int64_t to_row = head * capacity + position + row;
        const T* const source = static_cast<const T*>(from.data) + head * from.head + row * from.row;
        if (to.is_quantized()) {
          elements_<float>(to.scales)[to_row] =
              loops.quantize(elements_<int8_t>(to.rows) + to_row * d, source, d);
        } else {
          std::copy_n(source, d, elements_<T>(to.rows) + to_row * d);
        }
      }
    });
  });
}

namespace {

/// Rounds as the loops do, by ATen's operations.
void quantize_rows_(const at::Tensor& rows, const at::Tensor& scales, const at::Tensor& heads) {
  constexpr float kMost = 127;
  const at::Tensor wide = heads.to(at::kFloat);
  const at::Tensor scale = wide.abs().amax(/*dim=*/-1) / kMost + (wide * 0).sum(/*dim=*/-1);
  const at::Tensor factor = at::where(scale > 0, scale.reciprocal(), at::zeros_like(scale)).unsqueeze(-1);
  rows.copy_(at::nan_to_num(wide * factor, /*nan=*/-kMost).clamp(-kMost, kMost).round());
  scales.copy_(scale);
}

}  // namespace

void store_rows_(const StoredHeads& to, int64_t position, const at::Tensor& heads) {
  if (device_of("attention", to.rows, heads) == nullptr) return store_rows_(to, position, NewRows::of(heads));
  const at::Tensor rows = to.rows.narrow(/*dim=*/1, position, heads.size(1));
  if (!to.is_quantized()) {
    rows.copy_(heads);
  } else {
    quantize_rows_(rows, to.scales.narrow(/*dim=*/1, position, heads.size(1)), heads);
  }
}

at::Tensor stored_rows(const StoredHeads& from, int64_t count, at::ScalarType dtype) {
  if (!from.is_quantized()) return from.rows.narrow(1, 0, count);
  if (!from.rows.is_cpu()) {
    const at::Tensor scales = from.scales.narrow(1, 0, count).unsqueeze(-1);
    return (from.rows.narrow(1, 0, count).to(at::kFloat) * scales).to(dtype);
  }
  const int64_t heads = from.rows.size(0), capacity = from.rows.size(1), d = from.rows.size(2);
  const at::Tensor result = empty({heads, count, d}, dtype);
  with_element_type("attention", result, [&]<class T>(T) {
    const auto loops = stored_row_loops<T>();
    for_ranges(heads * count, d, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / count * capacity + i % count;
        loops.dequantize(elements_<T>(result) + i * d, elements<int8_t>(from.rows) + row * d,
                         elements<float>(from.scales)[row], d);
      }
    });
  });
  return result;
}

}  // namespace shardwise::kernels
