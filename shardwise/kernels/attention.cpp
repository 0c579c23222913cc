#include "shardwise/kernels/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

// Query heads [begin, end) share a KV head.
struct HeadGroup {
  int64_t begin, end, kv;
};

std::vector<HeadGroup> groups_of(const std::vector<int64_t>& kv_of_head) {
  std::vector<HeadGroup> groups;
  for (int64_t head = 0; head < static_cast<int64_t>(kv_of_head.size()); ++head) {
    if (groups.empty() || groups.back().kv != kv_of_head[head])
      groups.push_back({head, head, kv_of_head[head]});
    groups.back().end = head + 1;
  }
  return groups;
}

void check_qkv(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const std::vector<int64_t>& kv_of_head) {
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4, op, ": q and k must be [b, heads, s, d]; got ", q.sizes(),
                    " and ", k.sizes());
  check_tensor(op, "k", k, {q.size(0), k.size(1), q.size(2), q.size(3)}, q.scalar_type());
  check_tensor(op, "v", v, k.sizes(), q.scalar_type());
  const int64_t heads = static_cast<int64_t>(kv_of_head.size());
  const bool fits = heads == q.size(1) && std::is_sorted(kv_of_head.begin(), kv_of_head.end()) &&
                    (heads == 0 || (kv_of_head.front() >= 0 && kv_of_head.back() < k.size(1)));
  TORCH_CHECK_VALUE(fits, op, ": kv_of_head must name one of ", k.size(1), " KV heads for each of ",
                    q.size(1), " query heads, ascending; got ", at::IntArrayRef(kv_of_head));
}

at::Tensor with_contiguous_rows(const at::Tensor& heads) {
  return heads.stride(3) == 1 ? heads : heads.contiguous();
}

Qkv with_contiguous_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v)};
}

// [s, b, a·d] seen as [b, a, s, d], without a copy.
at::Tensor by_head(const at::Tensor& stream, int64_t heads, int64_t head_dim) {
  return stream.view({stream.size(0), stream.size(1), heads, head_dim}).permute({1, 2, 0, 3});
}

// The heads of one batch from `head` on. `heads` [b, a, s, d].
template <class T>
HeadRows<const T> rows_from(const at::Tensor& heads, int64_t batch, int64_t head) {
  return {elements<T>(heads) + batch * heads.stride(0) + head * heads.stride(1), heads.stride(1),
          heads.stride(2)};
}
template <class T>
HeadRows<T> rows_from_(const at::Tensor& heads, int64_t batch, int64_t head) {
  return {elements_<T>(heads) + batch * heads.stride(0) + head * heads.stride(1), heads.stride(1),
          heads.stride(2)};
}

AttentionExtent extent_of(const at::Tensor& q, int64_t heads, bool causal) {
  const int64_t d = q.size(3);
  return {heads, q.size(2), d, 1 / std::sqrt(static_cast<double>(d)), causal};
}

// Multiplications and additions of a head's scores: what a thread is given at least some of.
int64_t work_per_head(const at::Tensor& q) {
  return q.size(2) * q.size(2) * q.size(3);
}

}  // namespace

AttentionResult attention(const at::Tensor& q_any, const at::Tensor& k_any, const at::Tensor& v_any,
                          const std::vector<int64_t>& kv_of_head, bool causal) {
  check_qkv("attention", q_any, k_any, v_any, kv_of_head);
  const auto [q, k, v] = with_contiguous_rows(q_any, k_any, v_any);
  const int64_t b = q.size(0), a = q.size(1), s = q.size(2), d = q.size(3);
  const at::TensorOptions wide = q.options().dtype(accumulator_type(q.scalar_type()));
  const AttentionResult result = {at::empty({s, b, a * d}, q.options()), at::empty({b, a, s}, wide)};
  const at::Tensor out = by_head(result.out, a, d);
  const AttentionExtent extent = extent_of(q, /*heads=*/1, causal);
  with_element_type("attention", q.scalar_type(), [&]<class T>(T) {
    const auto loops = attention_loops<T>();
    for_ranges(b * a, work_per_head(q), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = at::empty({loops.forward_scratch(extent)}, wide);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / a, head = i % a, kv = kv_of_head[head];
        loops.forward(rows_from_<T>(out, batch, head), elements_<Accumulator<T>>(result.lse) + i * s,
                      rows_from<T>(q, batch, head), rows_from<T>(k, batch, kv), rows_from<T>(v, batch, kv),
                      elements_<Accumulator<T>>(scratch), extent);
      }
    });
  });
  return result;
}

// Threads share the KV heads: each sums the gradients of its KV heads over their query heads alone.
Qkv attention_backward(const at::Tensor& d_out_any, const Qkv& qkv, const at::Tensor& out_any,
                       const at::Tensor& lse_any, const std::vector<int64_t>& kv_of_head, bool causal) {
  check_qkv("attention_backward", qkv.q, qkv.k, qkv.v, kv_of_head);
  const auto [q, k, v] = with_contiguous_rows(qkv.q, qkv.k, qkv.v);
  const int64_t b = q.size(0), a = q.size(1), s = q.size(2), d = q.size(3);
  const at::ScalarType accumulator = accumulator_type(q.scalar_type());
  check_tensor("attention_backward", "d_out", d_out_any, {s, b, a * d}, q.scalar_type());
  check_tensor("attention_backward", "out", out_any, {s, b, a * d}, q.scalar_type());
  check_tensor("attention_backward", "lse", lse_any, {b, a, s}, accumulator);
  const at::Tensor d_out = by_head(d_out_any.contiguous(), a, d), out = by_head(out_any.contiguous(), a, d);
  const at::Tensor lse = lse_any.contiguous();
  const std::vector<HeadGroup> groups = groups_of(kv_of_head);
  const bool all_kv_used = static_cast<int64_t>(groups.size()) == k.size(1);
  const Qkv grads = {at::empty(q.sizes(), q.options()),
                     all_kv_used ? at::empty(k.sizes(), k.options()) : at::zeros_like(k.contiguous()),
                     all_kv_used ? at::empty(v.sizes(), v.options()) : at::zeros_like(v.contiguous())};
  const int64_t count = static_cast<int64_t>(groups.size());
  with_element_type("attention_backward", q.scalar_type(), [&]<class T>(T) {
    const auto loops = attention_loops<T>();
    for_ranges(b * count, work_per_head(q), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch =
          at::empty({loops.backward_scratch(extent_of(q, 1, causal))}, q.options().dtype(accumulator));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / count;
        const auto [head, end_head, kv] = groups[i % count];
        loops.backward(
            {rows_from_<T>(grads.q, batch, head), rows_from_<T>(grads.k, batch, kv),
             rows_from_<T>(grads.v, batch, kv)},
            rows_from<T>(d_out, batch, head),
            {rows_from<T>(q, batch, head), rows_from<T>(k, batch, kv), rows_from<T>(v, batch, kv),
             rows_from<T>(out, batch, head), elements<Accumulator<T>>(lse) + (batch * a + head) * s},
            elements_<Accumulator<T>>(scratch), extent_of(q, end_head - head, causal));
      }
    });
  });
  return grads;
}

}  // namespace shardwise::kernels
