#include "shardwise/kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/attention_by_products.h"
#include "shardwise/kernels/attention_by_tiles.h"
#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/attention_single.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/dropout_mask.h"
#include "shardwise/kernels/head_groups.h"
#include "shardwise/kernels/head_parts.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_dropout(const char* op, const AttentionDropout& dropout, int64_t heads) {
  TORCH_CHECK_VALUE(dropout.p >= 0 && dropout.p < 1, op, ": dropout must be in [0, 1); got ", dropout.p,
                    " [SW0400]");
  const bool fits =
      dropout.p == 0 || (dropout.first_head >= 0 && dropout.first_head + heads <= dropout.all_heads);
  TORCH_CHECK_VALUE(fits, op, ": dropout must give the position of ", heads, " heads among the model's; got ",
                    dropout.first_head, " of ", dropout.all_heads, " [SW0401]");
}

// Padding and dropout count positions from the first query, so they do not allow keys before it.
void check_past(const char* op, const Qkv& qkv, const AttentionOptions& options) {
  const int64_t queries = qkv.q.size(2), keys = qkv.k.size(2);
  const bool may_have_past = options.valid.empty() && options.dropout.p == 0;
  TORCH_CHECK_VALUE(keys == queries || (keys > queries && may_have_past), op,
                    ": keys must be as many as queries, or more without padding and dropout; got ", keys,
                    " and ", queries, " [SW0402]");
}

void check(const char* op, const Qkv& qkv, const AttentionOptions& options) {
  check_heads(op, qkv, options);
  check_past(op, qkv, options);
  check_valid_rows(op, options.valid, qkv.q.size(2), qkv.q.size(0));
  check_dropout(op, options.dropout, qkv.q.size(1));
}

// The offset of a group of heads of one sequence. The loops do not see padding rows: they treat a padded
// sequence as a shorter one.
struct Start {
  int64_t batch, head, row;
};

int64_t offset_of(Start at, const at::Tensor& heads) {
  return at.batch * heads.stride(0) + at.head * heads.stride(1) + at.row * heads.stride(2);
}

template <class T>
HeadRows<const T> rows_from(const at::Tensor& heads, Start at) {
  return {elements<T>(heads) + offset_of(at, heads), heads.stride(1), heads.stride(2)};
}
template <class T>
HeadRows<T> rows_from_(const at::Tensor& heads, Start at) {
  return {elements_<T>(heads) + offset_of(at, heads), heads.stride(1), heads.stride(2)};
}

// Computes the AttentionExtent of each part of a call.
class Extents {
 public:
  Extents(const Qkv& qkv, const AttentionOptions& options)
      : s_(qkv.q.size(2)),
        keys_(qkv.k.size(2)),
        d_(qkv.q.size(3)),
        window_(std::min(keys_, options.window.value_or(keys_))),
        options_(options) {}

  base::Range valid(int64_t batch) const {
    return options_.valid.empty() ? base::Range{0, s_} : options_.valid[batch];
  }
  // The multiply-adds of one head's scores, from which for_ranges derives the work per thread.
  int64_t work_per_head() const { return s_ * window_ * d_; }
  AttentionExtent heads(int64_t heads, Start at) const {
    return extent(heads, valid(at.batch).size(), mask(at));
  }
  // Returns an extent whose scratch is large enough for every call.
  AttentionExtent largest() const { return extent(/*heads=*/1, s_, mask({0, 0, 0})); }

 private:
  AttentionExtent extent(int64_t heads, int64_t rows, const ProbabilityMask& mask) const {
    const double scale = 1 / std::sqrt(static_cast<double>(d_));
    return {heads, rows, d_, keys_ - s_, s_, scale, options_.causal, window_, mask};
  }
  ProbabilityMask mask(Start at) const {
    const AttentionDropout& dropout = options_.dropout;
    const int64_t head = at.batch * dropout.all_heads + dropout.first_head + at.head;
    return {mask_of(dropout.p, dropout.key), 1 / (1 - dropout.p), static_cast<uint64_t>(head * s_),
            static_cast<uint64_t>((s_ + kDropoutGroup - 1) / kDropoutGroup)};
  }
  int64_t s_, keys_, d_, window_;
  const AttentionOptions& options_;
};

// Returns zeros if the loops write only a part of the tensor.
at::Tensor empty_or_zeros(bool is_fully_written, at::IntArrayRef shape, at::TensorOptions options) {
  return is_fully_written ? at::empty(shape, options) : at::zeros(shape, options);
}

/// Returns the keys and values of each sequence.
template <class T>
std::vector<KeysAndValues> sequences_of(const at::Tensor& k, const at::Tensor& v) {
  const auto heads_of = [](const at::Tensor& heads, int64_t sequence) {
    return SequenceHeads{elements<T>(heads) + sequence * heads.stride(0), heads.stride(1), heads.stride(2)};
  };
  std::vector<KeysAndValues> sequences;
  for (int64_t i = 0; i < k.size(0); ++i) sequences.push_back({heads_of(k, i), heads_of(v, i), k.size(2)});
  return sequences;
}

/// Returns the heads that one thread computes together: those of a KV head, whose keys it then prepares once,
/// or one if there are more threads.
std::vector<HeadGroup> forward_groups(const std::vector<int64_t>& kv_of_head, int64_t sequences) {
  std::vector<HeadGroup> groups = groups_of(kv_of_head);
  if (sequences * std::ssize(groups) >= at::get_num_threads()) return groups;
  groups.clear();
  for (int64_t head = 0; head < std::ssize(kv_of_head); ++head)
    groups.push_back({head, head + 1, kv_of_head[head]});
  return groups;
}

template <class T>
AttentionForwardLoops<T> best_forward_loops() {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (best_isa() >= Isa::amx) return amx::attention_forward_loops();
    if (best_isa() >= Isa::avx512_bf16) return avx512_bf16::attention_forward_loops();
  }
  return attention_forward_loops<T>();
}

template <class T>
AttentionBackwardLoops<T> best_backward_loops() {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (best_isa() >= Isa::amx) return amx::attention_backward_loops();
    if (best_isa() >= Isa::avx512_bf16) return avx512_bf16::attention_backward_loops();
  }
  return attention_backward_loops<T>();
}

}  // namespace

AttentionResult attention(const Qkv& qkv, const AttentionOptions& options) {
  const base::ProfiledOp profiled("attention");
  check("attention", qkv, options);
  if (const DeviceKernels* const device = device_of("attention", qkv.q, qkv.k, qkv.v))
    return device->has_fused_attention(qkv, options) ? device->fused_attention(qkv, options)
                                                     : attention_by_products(qkv, options);
  const auto [q, k, v] = with_contiguous_heads(qkv);
  const int64_t b = q.size(0), a = q.size(1), s = q.size(2), d = q.size(3);
  const Extents extents(qkv, options);
  const at::TensorOptions wide = q.options().dtype(accumulator_type(q.scalar_type()));
  const AttentionResult result = {empty_or_zeros(options.valid.empty(), {s, b, a * d}, q.options()),
                                  empty_or_zeros(options.valid.empty(), {b, a, s}, wide)};
  if (s == 1 && k.size(2) > 1) {
    with_element_type("attention", q,
                      [&]<class T>(T) { attend_single(result, q, sequences_of<T>(k, v), options); });
    return result;
  }
  const at::Tensor out = by_head(result.out, a, d);
  const std::vector<HeadGroup> groups = forward_groups(options.kv_of_head, b);
  const int64_t count = std::ssize(groups);
  with_element_type("attention", q, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = best_forward_loops<T>();
    for_ranges(b * count, extents.work_per_head(), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = at::empty({loops.scratch(extents.largest())}, wide);
      for (int64_t i = begin; i < end; ++i) {
        const auto [head, end_head, kv_head] = groups[i % count];
        const int64_t batch = i / count, row = extents.valid(batch).begin;
        const Start at = {batch, head, row}, kv = {batch, kv_head, row};
        loops.forward(rows_from_<T>(out, at), elements_<A>(result.lse) + (batch * a + head) * s + row,
                      rows_from<T>(q, at), rows_from<T>(k, kv), rows_from<T>(v, kv), elements_<A>(scratch),
                      extents.heads(end_head - head, at));
      }
    });
  });
  return result;
}

// Threads are assigned KV heads, so that one thread sums a KV head's gradient over its query heads.
Qkv attention_backward(const at::Tensor& d_out_any, const Qkv& qkv, const AttentionResult& forward,
                       const AttentionOptions& options) {
  const base::ProfiledOp profiled("attention_backward");
  check("attention_backward", qkv, options);
  const auto [q, k, v] = with_contiguous_heads(qkv);
  const int64_t b = q.size(0), a = q.size(1), s = q.size(2), d = q.size(3);
  TORCH_CHECK_VALUE(k.size(2) == s, "attention_backward: keys must be as many as queries; got ", k.size(2),
                    " and ", s, " [SW0404]");
  const Extents extents(qkv, options);
  const at::TensorOptions wide = q.options().dtype(accumulator_type(q.scalar_type()));
  check_tensor("attention_backward", "d_out", d_out_any, {s, b, a * d}, q.scalar_type());
  check_tensor("attention_backward", "out", forward.out, {s, b, a * d}, q.scalar_type());
  check_tensor("attention_backward", "lse", forward.lse, {b, a, s}, accumulator_type(q.scalar_type()));
  if (const DeviceKernels* const device =
          device_of("attention_backward", d_out_any, q, k, v, forward.out, forward.lse))
    return device->has_fused_attention(qkv, options)
               ? device->fused_attention_backward(d_out_any.contiguous(), {q, k, v}, forward, options)
               : attention_backward_by_products(d_out_any, qkv, forward, options);
  const at::Tensor d_out = by_head(d_out_any.contiguous(), a, d);
  const at::Tensor out = by_head(forward.out.contiguous(), a, d), lse = forward.lse.contiguous();
  const std::vector<HeadGroup> groups = groups_of(options.kv_of_head);
  const int64_t count = static_cast<int64_t>(groups.size());
  const bool is_unpadded = options.valid.empty(), writes_all_kv = is_unpadded && count == k.size(1);
  const Qkv grads = {empty_or_zeros(is_unpadded, q.sizes(), q.options()),
                     empty_or_zeros(writes_all_kv, k.sizes(), k.options()),
                     empty_or_zeros(writes_all_kv, v.sizes(), v.options())};
  with_element_type("attention_backward", q, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = best_backward_loops<T>();
    for_ranges(b * count, extents.work_per_head(), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = at::empty({loops.scratch(extents.largest())}, wide);
      for (int64_t i = begin; i < end; ++i) {
        const auto [head, end_head, kv_head] = groups[i % count];
        const int64_t batch = i / count, row = extents.valid(batch).begin;
        const Start at = {batch, head, row}, kv = {batch, kv_head, row};
        loops.backward({rows_from_<T>(grads.q, at), rows_from_<T>(grads.k, kv), rows_from_<T>(grads.v, kv)},
                       rows_from<T>(d_out, at),
                       {rows_from<T>(q, at), rows_from<T>(k, kv), rows_from<T>(v, kv), rows_from<T>(out, at),
                        elements<A>(lse) + (batch * a + head) * s + row},
                       elements_<A>(scratch), extents.heads(end_head - head, at));
      }
    });
  });
  return grads;
}

}  // namespace shardwise::kernels
