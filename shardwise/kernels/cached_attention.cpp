#include "shardwise/kernels/cached_attention.h"

#include <algorithm>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/attention_single.h"
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
    const int64_t capacity = cache.keys.dim() == 3 ? cache.keys.size(1) : 0;
    check_output(op, "keys", cache.keys, {k.size(1), capacity, k.size(3)}, q.scalar_type());
    check_output(op, "values", cache.values, cache.keys.sizes(), q.scalar_type());
    TORCH_CHECK_VALUE(cache.length >= 0 && cache.length < capacity, op,
                      ": a cache must have room for a token after its ", cache.length, "; got a capacity of ",
                      capacity, " [SW0714]");
  }
}

/// Copies the new heads of sequence `i` of `heads` [n, k, 1, d] to row `position` of `cache` [k, capacity,
/// d].
template <class T>
void append(const at::Tensor& cache, int64_t position, const at::Tensor& heads, int64_t i) {
  const int64_t d = heads.size(3), head_stride = cache.size(1) * d;
  const T* from = elements<T>(heads) + i * heads.stride(0);
  T* to = elements_<T>(cache) + position * d;
  for (int64_t head = 0; head < heads.size(1); ++head)
    std::copy_n(from + head * heads.stride(1), d, to + head * head_stride);
}

template <class T>
SequenceHeads heads_of(const at::Tensor& cache) {
  return {elements<T>(cache), cache.stride(0), cache.stride(1)};
}

}  // namespace

at::Tensor cached_attention(const Qkv& heads_any, const std::vector<CachedHeads>& caches,
                            const AttentionOptions& options) {
  const base::ProfiledOp profiled("cached_attention");
  check(heads_any, caches, options);
  const Qkv heads = with_contiguous_heads(heads_any);
  const int64_t n = heads.q.size(0), a = heads.q.size(1), d = heads.q.size(3);
  const at::ScalarType dtype = heads.q.scalar_type();
  std::vector<KeysAndValues> sequences;
  with_element_type("cached_attention", heads.q, [&]<class T>(T) {
    for (int64_t i = 0; i < n; ++i) {
      const auto& [keys, values, length] = caches[size_t(i)];
      append<T>(keys, length, heads.k, i);
      append<T>(values, length, heads.v, i);
      sequences.push_back({heads_of<T>(keys), heads_of<T>(values), length + 1});
    }
  });
  const AttentionResult result = {empty({n, 1, a * d}, dtype), empty({n, a, 1}, accumulator_type(dtype))};
  attend_single(result, heads.q, sequences, options);
  return result.out;
}

}  // namespace shardwise::kernels
