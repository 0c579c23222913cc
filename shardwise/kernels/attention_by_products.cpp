#include "shardwise/kernels/attention_by_products.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "shardwise/kernels/dropout.h"
#include "shardwise/kernels/dropout_rule.h"
#include "shardwise/kernels/head_groups.h"
#include "shardwise/kernels/head_parts.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {
namespace {

/// The positions that one batch of products computes.
struct ProductPart {
  base::Range sequences, queries, keys;

  at::Tensor queries_of(const at::Tensor& heads) const { return narrow(heads, queries); }
  at::Tensor keys_of(const at::Tensor& heads) const { return narrow(heads, keys); }

 private:
  // Narrows [b, heads, positions, …].
  at::Tensor narrow(const at::Tensor& heads, base::Range positions) const {
    return heads.narrow(0, sequences.begin, sequences.size()).narrow(2, positions.begin, positions.size());
  }
};

/// Returns the parts of a call: all positions, or those of each sequence that are not padding. Where dropout
/// knows more heads than the local ones, the mask's indices are consecutive only within a sequence.
std::vector<ProductPart> product_parts(const Qkv& qkv, const AttentionOptions& options) {
  const int64_t b = qkv.q.size(0), s = qkv.q.size(2), m = qkv.k.size(2);
  if (s == 0) return {};
  const bool draws_slices = options.dropout.p > 0 && qkv.q.size(1) != options.dropout.all_heads;
  if (options.valid.empty() && !draws_slices) return {{{0, b}, {0, s}, {0, m}}};
  std::vector<ProductPart> parts;
  for (int64_t i = 0; i < b; ++i) {
    const base::Range rows = options.valid.empty() ? base::Range{0, s} : options.valid[i];
    if (!rows.empty()) parts.push_back({{i, i + 1}, rows, rows});
  }
  return parts;
}

/// A call's arguments, and what all its parts use.
class ProductCall {
 public:
  ProductCall(const Qkv& qkv, const AttentionOptions& options)
      : qkv_(qkv), options_(options), groups_(groups_of(options.kv_of_head)) {
    if (options.causal) is_masked_ = masked();
  }

  /// Returns a part's q/√d, k and v in the accumulators' dtype, with KV heads repeated for their query heads.
  Qkv factors(const ProductPart& part) const {
    return {wide(part.queries_of(qkv_.q)).mul(scale()), repeated(part.keys_of(qkv_.k)),
            repeated(part.keys_of(qkv_.v))};
  }
  at::Tensor wide(const at::Tensor& x) const { return x.to(accumulator_type(qkv_.q.scalar_type())); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(qkv_.q.size(3))); }

  /// Fills the scores [b, a, queries, keys] of masked keys.
  void fill_masked_(const at::Tensor& scores, double value) const {
    if (options_.causal)
      scores.masked_fill_(is_masked_.narrow(0, 0, scores.size(2)).narrow(1, 0, scores.size(3)), value);
  }

  bool drops() const { return options_.dropout.p > 0; }
  /// Draws the factors, 0 or 1/(1 − p), of a part's probabilities: of all s rows of keys, as the mask's
  /// heads follow each other at that distance.
  at::Tensor draw(const ProductPart& part) const {
    const AttentionDropout& dropout = options_.dropout;
    const int64_t a = qkv_.q.size(1), s = qkv_.q.size(2);
    const int64_t columns = (s + kDropoutGroup - 1) / kDropoutGroup * kDropoutGroup;
    const int64_t first_head = part.sequences.begin * dropout.all_heads + dropout.first_head;
    const at::Tensor ones = at::ones({part.sequences.size(), a, s, columns},
                                     qkv_.q.options().dtype(accumulator_type(qkv_.q.scalar_type())));
    return kernels::dropout(ones, dropout.p, dropout.key, first_head * s * columns)
        .narrow(2, 0, part.queries.size())
        .narrow(3, 0, part.keys.size());
  }

  /// Adds up the query heads [b, a, keys, d] of each KV head, in a fixed order, which index_add_ does not
  /// have on GPUs.
  void sum_groups_(const at::Tensor& kv_heads, const at::Tensor& heads) const {
    if (has_own_kv()) {
      kv_heads.copy_(heads);
      return;
    }
    for (const HeadGroup& group : groups_)
      kv_heads.select(1, group.kv).copy_(heads.narrow(1, group.begin, group.end - group.begin).sum(1));
  }

 private:
  bool has_own_kv() const {
    return std::ssize(groups_) == qkv_.q.size(1) && std::ssize(groups_) == qkv_.k.size(1);
  }
  at::Tensor repeated(const at::Tensor& kv_heads) const {
    const at::Tensor heads = wide(kv_heads);
    if (has_own_kv()) return heads;
    std::vector<at::Tensor> groups = {heads.narrow(1, 0, 0)};  // cat needs one, also for no query heads
    for (const HeadGroup& group : groups_)
      groups.push_back(heads.narrow(1, group.kv, 1).expand({-1, group.end - group.begin, -1, -1}));
    return at::cat(groups, /*dim=*/1);
  }
  // Returns [s, m]. A shorter part's mask is its first rows and columns.
  at::Tensor masked() const {
    const int64_t s = qkv_.q.size(2), m = qkv_.k.size(2);
    const at::TensorOptions positions = qkv_.q.options().dtype(at::kLong);
    const at::Tensor query = at::arange(m - s, m, positions).unsqueeze(1), key = at::arange(m, positions);
    const at::Tensor after = key.gt(query);
    return options_.window ? after.bitwise_or(key.le(query.sub(*options_.window))) : after;
  }

  const Qkv& qkv_;
  const AttentionOptions& options_;
  std::vector<HeadGroup> groups_;
  at::Tensor is_masked_;  // [s, m] bool, undefined if not causal
};

at::Tensor transposed(const at::Tensor& heads) {
  return heads.transpose(2, 3);
}

}  // namespace

AttentionResult attention_by_products(const Qkv& qkv, const AttentionOptions& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& q = qkv.q;
  const int64_t b = q.size(0), a = q.size(1), s = q.size(2), d = q.size(3);
  const ProductCall call(qkv, options);
  const AttentionResult result = {at::zeros({s, b, a * d}, q.options()),
                                  at::zeros({b, a, s}, q.options().dtype(accumulator_type(q.scalar_type())))};
  const at::Tensor out = by_head(result.out, a, d);
  for (const ProductPart& part : product_parts(qkv, options)) {
    const Qkv factors = call.factors(part);
    const at::Tensor weights = at::matmul(factors.q, transposed(factors.k));
    call.fill_masked_(weights, -std::numeric_limits<double>::infinity());
    const at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
    weights.sub_(largest).exp_();
    const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
    if (call.drops()) weights.mul_(call.draw(part));
    part.queries_of(out).copy_(at::matmul(weights, factors.v).div_(sum));
    part.queries_of(result.lse).copy_(sum.log().add_(largest).squeeze(-1));
  }
  return result;
}

// With P the probabilities, M the dropout factors: dV = (P∘M)ᵀ·dO, dP = M∘(dO·Vᵀ), and the gradient of the
// scores dS = P∘(dP − rowsum(dO∘O)).
Qkv attention_backward_by_products(const at::Tensor& d_out_any, const Qkv& qkv,
                                   const AttentionResult& forward, const AttentionOptions& options) {
  const c10::NoGradGuard no_grad;
  const int64_t a = qkv.q.size(1), d = qkv.q.size(3);
  const ProductCall call(qkv, options);
  const Qkv grads = {at::zeros(qkv.q.sizes(), qkv.q.options()), at::zeros(qkv.k.sizes(), qkv.k.options()),
                     at::zeros(qkv.v.sizes(), qkv.v.options())};
  const at::Tensor d_out_heads = by_head(d_out_any.contiguous(), a, d);
  const at::Tensor out_heads = by_head(forward.out.contiguous(), a, d);
  for (const ProductPart& part : product_parts(qkv, options)) {
    const Qkv factors = call.factors(part);
    const at::Tensor d_out = call.wide(part.queries_of(d_out_heads));
    const at::Tensor d_sums = call.wide(part.queries_of(out_heads)).mul(d_out).sum(-1, /*keepdim=*/true);
    const at::Tensor kept = call.drops() ? call.draw(part) : at::Tensor();
    const at::Tensor p = at::matmul(factors.q, transposed(factors.k));
    p.sub_(part.queries_of(forward.lse).unsqueeze(-1)).exp_();
    call.fill_masked_(p, 0);
    const at::Tensor dv = at::matmul(transposed(kept.defined() ? p.mul(kept) : p), d_out);
    const at::Tensor ds = at::matmul(d_out, transposed(factors.v));
    if (kept.defined()) ds.mul_(kept);
    ds.sub_(d_sums).mul_(p);
    part.queries_of(grads.q).copy_(at::matmul(ds, factors.k).mul_(call.scale()));
    call.sum_groups_(part.keys_of(grads.k), at::matmul(transposed(ds), factors.q));
    call.sum_groups_(part.keys_of(grads.v), dv);
  }
  return grads;
}

}  // namespace shardwise::kernels
