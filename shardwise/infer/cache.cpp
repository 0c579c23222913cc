#include "shardwise/infer/cache.h"

namespace shardwise::infer {

at::ScalarType cache_dtype(const std::string& where, const model::DecoderWeights& weights,
                           std::optional<at::ScalarType> wanted) {
  const at::ScalarType dtype = wanted.value_or(weights.dtype());
  TORCH_CHECK_VALUE(dtype == weights.dtype() || dtype == at::kChar, where,
                    ": cache_dtype must be int8 or that of the weights, ", weights.dtype(), "; got ", dtype,
                    " [SW0748]");
  return dtype;
}

nn::Cache empty_cache(const model::DecoderWeights& weights, int64_t capacity, at::ScalarType dtype) {
  const config::Config& config = weights.config();
  const int64_t kv_heads = weights.layout().kv_heads.range(weights.group().rank()).size();
  return nn::Cache::empty(weights.stage().front(), kv_heads, config.head_dim, capacity,
                          at::TensorOptions(dtype).device(weights.group().device()));
}

}  // namespace shardwise::infer
