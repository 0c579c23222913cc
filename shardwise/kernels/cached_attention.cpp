#include "shardwise/kernels/cached_attention.h"

#include <utility>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/attention_single.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/head_groups.h"
#include "shardwise/kernels/head_parts.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {
namespace {

void check(const Qkv& heads, const std::vector<CachedHeads>& caches, const AttentionOptions& options) {
  constexpr const char* op = "cached_attention";
  check_heads(op, heads, options);
  const at::Tensor &q = heads.q, &k = heads.k;
  TORCH_CHECK_VALUE(q.size(0) == std::ssize(caches) && q.size(2) == 1 && k.size(2) == 1, op,
                    ": must get one token for each of ", caches.size(), " caches; got q ", q.sizes(),
                    " and k ", k.sizes(), " [SW0712]");
  TORCH_CHECK_VALUE(options.valid.empty() && options.dropout.p == 0, op,
                    ": must have neither padding nor dropout; got one [SW0713]");
  for (const CachedHeads& cache : caches) {
    const int64_t capacity = cache.keys.rows.dim() == 3 ? cache.keys.rows.size(1) : 0;
    const bool is_int8 = cache.keys.is_quantized();
    for (const auto& [name, stored] : {std::pair("keys", &cache.keys), {"values", &cache.values}}) {
      check_output(op, name, stored->rows, {k.size(1), capacity, k.size(3)},
                   is_int8 ? at::kChar : q.scalar_type());
      if (is_int8) check_output(op, "scales", stored->scales, {k.size(1), capacity}, at::kFloat);
    }
    TORCH_CHECK_VALUE(cache.length >= 0 && cache.length < capacity, op,
                      ": a cache must have room for a token after its ", cache.length, "; got a capacity of ",
                      capacity, " [SW0714]");
  }
}

/// Returns the new row of sequence `i` of `heads` [n, k, 1, d].
NewRows new_row(const at::Tensor& heads, int64_t i) {
  const int64_t offset = i * heads.stride(0) * heads.element_size();
  return {static_cast<const char*>(heads.const_data_ptr()) + offset, heads.scalar_type(), /*rows=*/1,
          heads.stride(1), heads.stride(2)};
}

SequenceHeads heads_of(const StoredHeads& stored) {
  const int64_t capacity = stored.rows.size(1), d = stored.rows.size(2);
  return {stored.rows.const_data_ptr(), capacity * d, d,
          stored.is_quantized() ? elements<float>(stored.scales) : nullptr, capacity};
}

/// Returns the kernels of the device that all of them are on; null for the CPU.
const DeviceKernels* device_of_all(const Qkv& heads, const std::vector<CachedHeads>& caches) {
  constexpr const char* op = "cached_attention";
  const DeviceKernels* device = device_of(op, heads.q, heads.k, heads.v);
  for (const CachedHeads& cache : caches) {
    for (const StoredHeads* stored : {&cache.keys, &cache.values})
      device = device_of(op, heads.q, stored->rows, stored->scales);
  }
  return device;
}

}  // namespace

at::Tensor cached_attention(const Qkv& heads_any, const std::vector<CachedHeads>& caches,
                            const AttentionOptions& options, const CacheTable& table) {
  const base::ProfiledOp profiled("cached_attention");
  check(heads_any, caches, options);
  const Qkv heads = with_contiguous_heads(heads_any);
  const int64_t n = heads.q.size(0), a = heads.q.size(1), d = heads.q.size(3);
  if (const DeviceKernels* const device = device_of_all(heads, caches)) {
    at::Tensor out = empty({n, 1, a * d}, heads.q);
    device->cached_attention(out, heads, caches, options, table);
    return out;
  }
  const at::ScalarType dtype = heads.q.scalar_type();
  std::vector<KeysAndValues> sequences;
  for (int64_t i = 0; i < n; ++i) {
    const auto& [keys, values, length] = caches[size_t(i)];
    store_rows_(keys, length, new_row(heads.k, i));
    store_rows_(values, length, new_row(heads.v, i));
    sequences.push_back({heads_of(keys), heads_of(values), length + 1});
  }
  const AttentionResult result = {empty({n, 1, a * d}, dtype), empty({n, a, 1}, accumulator_type(dtype))};
  attend_single(result, heads.q, sequences, options);
  return result.out;
}

}  // namespace shardwise::kernels
