#include "shardwise/doctor/quantization_formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

namespace shardwise::doctor {

using at::Tensor;

namespace {

/// Returns the smallest fp16 numbers that are not below `x`, which is fp32 and not negative.
Tensor rounded_up(const Tensor& x) {
  const Tensor nearest = x.to(at::kHalf);
  const Tensor is_below = nearest.to(at::kFloat).lt(x);
  return nearest.view(at::kShort).add(is_below.to(at::kShort)).view(at::kHalf).to(at::kFloat);
}

Tensor quantized_group(const Tensor& group, int64_t bits) {
  const auto levels = static_cast<double>((int64_t{1} << (bits - 1)) - 1);
  const Tensor scale = rounded_up(group.abs().amax(/*dim=*/1, /*keepdim=*/true) / levels);
  return (group / scale).round().masked_fill(scale.eq(0), 0) * scale;
}

}  // namespace

Tensor quantized_values(const Tensor& weight, int64_t bits, int64_t group_size) {
  const Tensor w = weight.to(at::kFloat);
  const int64_t in = w.size(1), size = group_size == 0 ? in : group_size;
  std::vector<Tensor> groups;
  for (int64_t begin = 0; begin < in; begin += size)
    groups.push_back(quantized_group(w.narrow(/*dim=*/1, begin, std::min(size, in - begin)), bits));
  return at::cat(groups, /*dim=*/1).to(weight.scalar_type());
}

}  // namespace shardwise::doctor
