#include "shardwise/kernels/attention_single.h"

#include <algorithm>
#include <cmath>

#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/head_groups.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

template <class T>
HeadRows<const T> rows_of(const SequenceHeads& heads, int64_t head) {
  return {static_cast<const T*>(heads.data) + head * heads.head, heads.head, heads.row};
}

AttentionExtent attended_extent(int64_t heads, int64_t keys, int64_t d, const AttentionOptions& options) {
  const int64_t window = std::min(keys, options.window.value_or(keys));
  return {heads,
          /*s=*/1,
          d,
          /*past=*/keys - 1,
          /*head_rows=*/1,
          1 / std::sqrt(static_cast<double>(d)),
          options.causal,
          window,
          /*mask=*/{}};
}

int64_t most_keys(const std::vector<KeysAndValues>& sequences) {
  int64_t most = 0;
  for (const KeysAndValues& sequence : sequences) most = std::max(most, sequence.count);
  return most;
}

}  // namespace

void attend_single(const AttentionResult& result, const at::Tensor& q,
                   const std::vector<KeysAndValues>& sequences, const AttentionOptions& options) {
  const int64_t a = q.size(1), d = q.size(3), keys = most_keys(sequences);
  const std::vector<HeadGroup> groups = groups_of(options.kv_of_head);
  const auto count = std::ssize(groups);
  if (count == 0) return;
  with_element_type("attention", q, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = attention_single_loops<T>();
    for_ranges(q.size(0) * count, a / count * keys * d, [&](int64_t begin, int64_t end) {
      const at::Tensor scratch =
          empty({loops.scratch(attended_extent(1, keys, d, options))}, result.lse.scalar_type());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sequence = i / count;
        const auto [head, end_head, kv_head] = groups[i % count];
        const auto& [k, v, key_count] = sequences[size_t(sequence)];
        const int64_t first = sequence * a + head;
        loops.forward({elements_<T>(result.out) + first * d, d, d}, elements_<A>(result.lse) + first,
                      {elements<T>(q) + sequence * q.stride(0) + head * q.stride(1), q.stride(1), d},
                      rows_of<T>(k, kv_head), rows_of<T>(v, kv_head), elements_<A>(scratch),
                      attended_extent(end_head - head, key_count, d, options));
      }
    });
  });
}

}  // namespace shardwise::kernels
