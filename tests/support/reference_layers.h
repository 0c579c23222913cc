// The layers of the reference model (reference.h), and the arithmetic that they meet: what a program stores,
// and after sums of how many terms (docs/numerics.md §3).
#pragma once
#include "tests/support/reference.h"

namespace shardwise::testing {

struct Lookup {
  const Tensors& weights;
  const Rounding& rounding;
  int64_t tokens;

  at::Tensor operator()(const std::string& name) const { return rounding.weight(weights.at(name), tokens); }
  bool has(const std::string& name) const { return weights.count(name) > 0; }

  at::Tensor matmul(const at::Tensor& x, const std::string& name) const;
  at::Tensor column(const at::Tensor& x, const std::string& name) const;
  /// Each rank's term is stored, and their sum, and what the bias is added to.
  at::Tensor row(const at::Tensor& x, const std::string& name) const;
  /// What column-parallel products of `outputs` columns read: each rank's term of its gradient is stored, and
  /// their sum.
  at::Tensor column_input(const at::Tensor& x, int64_t outputs) const;
};

/// RMSNorm or, where the weights have a bias, LayerNorm over the last dim; `name` without ".weight".
at::Tensor reference_norm(const at::Tensor& x, const std::string& name, double eps, const Lookup& w);

/// `x` [s, b, h] → [s, b, h]; `name` ends in "self_attn.". `mask`: what dropout multiplies the probabilities
/// by, [b, a, s, s], or undefined.
at::Tensor reference_attention(const at::Tensor& x, const std::string& name, const model::Config& config,
                               std::optional<int64_t> window, const Batch& batch, const at::Tensor& mask,
                               const Lookup& w);

/// `name` ends in "mlp.".
at::Tensor reference_mlp(const at::Tensor& x, const std::string& name, model::Activation activation,
                         const Lookup& w);

/// Scalar.
at::Tensor reference_loss(const at::Tensor& logits, const Batch& batch, const Lookup& w);

}  // namespace shardwise::testing
