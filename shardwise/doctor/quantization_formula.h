// A second implementation of quantization on load, with ATen operators. It checks the packing of weights and
// their products, and shares no code with quant/.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::doctor {

/// Returns what `weight` [out, in] becomes by symmetric quantization: each group of `group_size` inputs (0:
/// all) of a row is rounded to multiples of its scale, the group's largest magnitude / (2^(bits−1) − 1) in
/// fp32, rounded up to fp16. In the dtype of `weight`, whose values must be fp32 or narrower numbers.
at::Tensor quantized_values(const at::Tensor& weight, int64_t bits, int64_t group_size);

}  // namespace shardwise::doctor
