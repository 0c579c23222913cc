// Reference quantization with ATen operators, straight from the definition.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

namespace shardwise::testing {

/// Returns the smallest fp16 number that is not below each element of `x` (fp32, positive).
inline at::Tensor half_rounded_up(const at::Tensor& x) {
  const at::Tensor nearest = x.to(at::kHalf);
  const at::Tensor next = (nearest.view(at::kShort) + 1).view(at::kHalf);
  return at::where(nearest.to(at::kFloat) < x, next, nearest).to(at::kFloat);
}

/// Quantizes and dequantizes `w` [rows, columns] fp32 symmetrically; group_size 0 means one group per row.
inline at::Tensor requantized(const at::Tensor& w, int64_t bits, int64_t group_size) {
  const int64_t largest_level = (int64_t{1} << (bits - 1)) - 1,
                size = group_size == 0 ? w.size(1) : group_size;
  std::vector<at::Tensor> groups;
  for (const at::Tensor& group : w.split(size, /*dim=*/1)) {
    const at::Tensor scale = half_rounded_up(group.abs().amax(/*dim=*/1, /*keepdim=*/true) / largest_level);
    const at::Tensor levels = at::where(scale > 0, (group / scale).round(), at::zeros_like(group));
    groups.push_back((levels + 0.0) * scale);  // quantized values have no −0
  }
  return at::cat(groups, /*dim=*/1);
}

}  // namespace shardwise::testing
