// Self-attention of the reference, with explicit scores.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tests/support/reference_layers.h"

namespace shardwise::testing {
namespace {

at::Tensor rotate_half(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

// Rotates `x` [b, heads, s, d]. The angle of position p and frequency i is p·f_i, for both halves of the
// rotated elements: two elements of the head per frequency.
at::Tensor rotate(const at::Tensor& x, const std::vector<double>& frequencies) {
  const auto doubles = at::TensorOptions(at::kDouble);
  const at::Tensor angles = at::outer(at::arange(x.size(2), doubles), at::tensor(frequencies, doubles));
  const at::Tensor both = at::cat({angles, angles}, -1);
  const int64_t turned = both.size(-1);
  const at::Tensor first = x.narrow(-1, 0, turned), rest = x.narrow(-1, turned, x.size(-1) - turned);
  const at::Tensor cos = both.cos().to(x.scalar_type()), sin = both.sin().to(x.scalar_type());
  return at::cat({first * cos + rotate_half(first) * sin, rest}, -1);
}

// [s, b, heads·d] → [b, heads, s, d]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).permute({1, 2, 0, 3});
}

// Returns [b, 1, s, s]: whether query i attends to key j, which is within the window, not after i, and not
// padding.
at::Tensor visible(const at::Tensor& ids, const std::vector<base::Range>& valid,
                   std::optional<int64_t> window) {
  const int64_t length = ids.size(0), sequences = ids.size(1);
  at::Tensor seen = at::zeros({sequences, 1, length, length}, at::kBool);
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const base::Range tokens = valid.empty() ? base::Range{0, length} : valid[sequence];
    for (int64_t i = tokens.begin; i < tokens.end; ++i) {
      const int64_t first = window ? std::max(tokens.begin, i - *window + 1) : tokens.begin;
      seen[sequence][0][i].narrow(0, first, i + 1 - first).fill_(true);
    }
  }
  return seen;
}

// A backward from the stored output uses rowsum(dO ∘ O) where autograd uses rowsum(P ∘ dP), so the rounding
// error of O affects every score of the row by P · rowsum(dO ∘ error). The log-sum-exp's gradient is P.
at::Tensor as_stored(const at::Tensor& out, const at::Tensor& scores, const Lookup& w) {
  const at::Tensor stored = w.rounding.stored(out, {.value = scores.size(-1)});
  const at::Tensor change = (stored - out).detach();
  const at::Tensor lse = at::logsumexp(scores, {-1}, /*keepdim=*/true);
  return stored - change * (lse - lse.detach());
}

struct HeadTensors {
  at::Tensor q, k, v;  // [b, a, s, d]
};

// A fully masked query has probabilities of zero.
at::Tensor core(const HeadTensors& heads, const at::Tensor& seen, const at::Tensor& mask, const Lookup& w) {
  const int64_t d = heads.q.size(3);
  const at::Tensor products =
      at::matmul(heads.q, heads.k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
  const at::Tensor hidden = seen.logical_not();
  const at::Tensor scores = w.rounding.kept(products, {.value = d}).masked_fill(hidden, -1e30);
  at::Tensor probabilities = w.rounding.kept(at::softmax(scores, -1), {}).masked_fill(hidden, 0);
  if (mask.defined()) probabilities = probabilities * mask;
  return as_stored(at::matmul(probabilities, heads.v), scores, w);
}

}  // namespace

at::Tensor reference_attention(const at::Tensor& x, const std::string& name, const config::Config& config,
                               std::optional<int64_t> window, const Batch& batch, const at::Tensor& mask,
                               const Lookup& w) {
  const int64_t query_heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const int64_t length = x.size(0), group = query_heads / kv_heads;
  const at::Tensor in = w.column_input(x, (query_heads + 2 * kv_heads) * config.head_dim);
  const auto project = [&](const std::string& which, int64_t count) {
    return split_heads(w.column(in, name + which + "_proj"), count);
  };
  const auto stored = [&](const at::Tensor& head) { return w.rounding.stored(head, {.gradient = length}); };
  const auto placed = [&](const std::string& which, int64_t count) {
    at::Tensor head = project(which, count);
    const std::string norm = name + which + "_norm";
    if (w.has(norm + ".weight")) head = reference_norm(head, norm, config.norm_eps, w);
    if (config.positions == config::Positions::rotary) head = rotate(head, reference_frequencies(config));
    return stored(head);
  };
  const at::Tensor q = placed("q", query_heads), k = placed("k", kv_heads),
                   v = stored(project("v", kv_heads));
  const HeadTensors heads{q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)};
  const at::Tensor mixed = core(heads, visible(batch.ids, batch.valid, window), mask, w);
  const at::Tensor rows = mixed.permute({2, 0, 1, 3}).reshape({length, x.size(1), -1});
  return w.row(w.rounding.branch(rows, config.hidden_size), name + "o_proj");
}

}  // namespace shardwise::testing
