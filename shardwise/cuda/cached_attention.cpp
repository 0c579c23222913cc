#include "shardwise/kernels/cached_attention_cuda.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/heads.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/kernels/queued_copy.h"

namespace shardwise::cuda {

using at::Tensor;
using kernels::CachedHeads;
namespace gpu = kernels::cuda;

namespace {

/// Query head i has KV head (i + first) / group.
struct HeadGroups {
  int group, first;
};

/// Errors: c10::ValueError if the KV heads are not in groups of one size, cut only at both ends.
HeadGroups groups_of(const std::vector<int64_t>& kv_of_head) {
  std::vector<int> sizes;
  for (size_t i = 0; i < kv_of_head.size(); ++i) {
    if (i == 0 || kv_of_head[i] != kv_of_head[i - 1]) sizes.push_back(0);
    ++sizes.back();
  }
  const int group = *std::ranges::max_element(sizes);
  const HeadGroups groups{group, sizes.size() == 1 ? 0 : group - sizes.front()};
  for (size_t i = 0; i < kv_of_head.size(); ++i)
    TORCH_CHECK_VALUE(kv_of_head[i] == (static_cast<int64_t>(i) + groups.first) / group,
                      "cached_attention: a GPU's query heads must share KV heads in groups of one size; got ",
                      at::IntArrayRef(kv_of_head), " [SW0854]");
  return groups;
}

/// Kernels read rows in packs of the largest power of two that divides a row, at most 16 bytes.
void check_alignment(const Tensor& rows) {
  const int64_t row_bytes = rows.size(2) * rows.element_size(),
                pack = std::min<int64_t>(16, row_bytes & -row_bytes);
  TORCH_CHECK_VALUE(static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.const_data_ptr())) % pack == 0,
                    "cached_attention: a GPU's caches must begin at a multiple of ", pack,
                    " bytes; got one at ", rows.const_data_ptr(), " [SW0856]");
}

/// With pointers to any type.
using SequenceRow = gpu::CachedSequence<void>;

template <class T, class S>
void attend(const Tensor& out, const kernels::Qkv& heads, const kernels::CacheTable& table,
            const kernels::AttentionOptions& options) {
  const auto n = static_cast<int>(heads.q.size(0)), a = static_cast<int>(heads.q.size(1)),
             d = static_cast<int>(heads.q.size(3));
  TORCH_CHECK_VALUE(d <= gpu::kMostHeadDim, "cached_attention: a GPU's head_dim must be at most ",
                    gpu::kMostHeadDim, "; got ", d, " [SW0855]");
  // Of the capacities, not of the lengths: a sequence has the same bits among others.
  const int64_t window = options.window.value_or(0);
  const gpu::KeySplits splits = gpu::key_splits(table.capacity, window);
  const auto [group, first] = groups_of(options.kv_of_head);
  const Tensor workspace =
      at::empty({gpu::attention_workspace_bytes(n, a, d, splits)}, heads.q.options().dtype(at::kByte));
  gpu::cached_attention<T, S>({.out = elements_<T>(out),
                               .workspace = elements_<float>(workspace),
                               .q = heads_of<const T>(heads.q),
                               .k = heads_of<const T>(heads.k),
                               .v = heads_of<const T>(heads.v),
                               .sequences = elements<gpu::CachedSequence<S>>(table.on_device),
                               .n = n,
                               .heads = a,
                               .kv_heads = static_cast<int>(heads.k.size(1)),
                               .head_dim = d,
                               .group = group,
                               .first = first,
                               .window = window,
                               .splits = splits},
                              current_stream());
}

}  // namespace

Tensor Kernels::cache_table(const std::vector<CachedHeads>& caches) const {
  const Tensor table = at::empty({std::ssize(caches), static_cast<int64_t>(sizeof(SequenceRow))}, at::kByte);
  auto* row = table.mutable_data_ptr<uint8_t>();
  for (const auto& [keys, values, length] : caches) {
    check_alignment(keys.rows);
    check_alignment(values.rows);
    const SequenceRow sequence{elements_<void>(keys.rows),
                               elements_<void>(values.rows),
                               elements_<float>(keys.scales),
                               elements_<float>(values.scales),
                               keys.rows.size(1),
                               length};
    std::memcpy(row, &sequence, sizeof sequence);
    row += sizeof sequence;
  }
  return table;
}

void Kernels::cached_attention(const Tensor& out, const kernels::Qkv& heads,
                               const std::vector<CachedHeads>& caches,
                               const kernels::AttentionOptions& options,
                               const kernels::CacheTable& given) const {
  if (out.numel() == 0) return;
  kernels::CacheTable table = given;
  if (!table.on_device.defined()) {
    for (const CachedHeads& cache : caches)
      table.capacity = std::max(table.capacity, cache.keys.rows.size(1));
    table.on_device = kernels::queued_copy(cache_table(caches), out.device());
  }
  with_type("cached_attention", out.scalar_type(), [&]<class T>(T) {
    caches[0].keys.is_quantized() ? attend<T, int8_t>(out, heads, table, options)
                                  : attend<T, T>(out, heads, table, options);
  });
}

}  // namespace shardwise::cuda
