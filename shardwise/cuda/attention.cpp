// Attention of whole sequences by ATen's FlashAttention, which has no matrix of scores. Its heads are
// [b, s, a, d]. Source: Dao 2023, "FlashAttention-2".
#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "shardwise/cuda/kernels.h"

namespace shardwise::cuda {

using at::Tensor;
using kernels::AttentionOptions;
using kernels::Qkv;

namespace {

/// While it lives, ATen adds up gradients in one order, so that runs have the same bits.
class Deterministic {
 public:
  Deterministic()
      : was_(context().deterministicAlgorithms()),
        warned_(context().deterministicAlgorithmsWarnOnly()),
        filled_(context().deterministicFillUninitializedMemory()) {
    context().setDeterministicAlgorithms(true, /*warn_only=*/false);
    context().setDeterministicFillUninitializedMemory(false);
  }
  ~Deterministic() {
    context().setDeterministicAlgorithms(was_, warned_);
    context().setDeterministicFillUninitializedMemory(filled_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  static at::Context& context() { return at::globalContext(); }
  bool was_, warned_, filled_;
};

/// Returns [b, s, heads, d] of [b, heads, s, d], and the reverse.
Tensor swapped(const Tensor& heads) {
  return heads.transpose(1, 2);
}

/// Returns [b, s, a, d] of [s, b, a·d].
Tensor heads_of_rows(const Tensor& rows, const Qkv& qkv) {
  return rows.view({rows.size(0), rows.size(1), qkv.q.size(1), qkv.q.size(3)}).transpose(0, 1);
}

/// How many keys before a query's own it attends to, and how many after it; nothing: all that `causal`
/// leaves.
struct Window {
  std::optional<int64_t> before, after;

  explicit Window(const AttentionOptions& options) {
    if (!options.window) return;
    before = *options.window - 1;
    after = 0;
  }
};

/// Query heads that share a KV head follow each other, as many for each.
bool has_even_groups(const std::vector<int64_t>& kv_of_head, int64_t kv_heads) {
  const int64_t heads = std::ssize(kv_of_head);
  if (kv_heads == 0 || heads == 0 || heads % kv_heads != 0) return false;
  for (int64_t head = 0; head < heads; ++head)
    if (kv_of_head[size_t(head)] != head / (heads / kv_heads)) return false;
  return true;
}

}  // namespace

bool Kernels::has_fused_attention(const Qkv& qkv, const AttentionOptions& options) const {
  constexpr int64_t kMostFeatures = 256, kPack = 8;
  const Tensor& q = qkv.q;
  return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && q.numel() > 0 &&
         q.size(3) <= kMostFeatures && q.size(3) % kPack == 0 && options.valid.empty() &&
         options.dropout.p == 0 && has_even_groups(options.kv_of_head, qkv.k.size(1));
}

kernels::AttentionResult Kernels::fused_attention(const Qkv& qkv, const AttentionOptions& options) const {
  const int64_t s = qkv.q.size(2), m = qkv.k.size(2);
  const Window window(options);
  const auto [out, lse, seed, unused, mask] = at::_flash_attention_forward(
      swapped(qkv.q), swapped(qkv.k), swapped(qkv.v), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, s, m,
      /*dropout_p=*/0, options.causal, /*return_debug_mask=*/false, /*scale=*/{}, window.before,
      window.after);
  return {out.transpose(0, 1).reshape({s, qkv.q.size(0), qkv.q.size(1) * qkv.q.size(3)}), lse};
}

Qkv Kernels::fused_attention_backward(const Tensor& d_out, const Qkv& qkv,
                                      const kernels::AttentionResult& forward,
                                      const AttentionOptions& options) const {
  const int64_t s = qkv.q.size(2);
  const Window window(options);
  const Deterministic deterministic;
  const Tensor no_dropout = at::empty({0}, qkv.q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      heads_of_rows(d_out, qkv), swapped(qkv.q), swapped(qkv.k), swapped(qkv.v),
      heads_of_rows(forward.out, qkv), forward.lse, /*cum_seq_q=*/Tensor(), /*cum_seq_k=*/Tensor(), s, s,
      /*dropout_p=*/0, options.causal, no_dropout, no_dropout, /*scale=*/{}, window.before, window.after);
  return {swapped(dq), swapped(dk), swapped(dv)};
}

}  // namespace shardwise::cuda
