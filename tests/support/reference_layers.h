// The layers of the reference model (reference.h), with the roundings of docs/numerics.md §3: which tensors a
// program stores, and the lengths of its sums.
#pragma once
#include "tests/support/reference.h"

namespace shardwise::testing {

/// The weights by name, and products with the roundings of a tensor-parallel program.
struct Lookup {
  const Tensors& weights;
  const Rounding& rounding;
  int64_t tokens;

  at::Tensor operator()(const std::string& name) const { return rounding.weight(weights.at(name), tokens); }
  bool has(const std::string& name) const { return weights.count(name) > 0; }

  at::Tensor matmul(const at::Tensor& x, const std::string& name) const;
  at::Tensor column(const at::Tensor& x, const std::string& name) const;
  /// A row-parallel product: each rank's partial sum, the reduced sum, and the result with bias are stored.
  at::Tensor row(const at::Tensor& x, const std::string& name) const;
  /// The input of column-parallel products with `outputs` columns: each rank's partial sum of its gradient
  /// and the reduced sum are stored.
  at::Tensor column_input(const at::Tensor& x, int64_t outputs) const;
};

/// Applies RMSNorm, or LayerNorm if the weights have a bias, over the last dim. `name` is without ".weight".
at::Tensor reference_norm(const at::Tensor& x, const std::string& name, double eps, const Lookup& w);

/// Computes self-attention. `name` ends in "self_attn."; `mask` [b, a, s, s] are the dropout factors of the
/// probabilities, or undefined. Shapes: `x` [s, b, h] → [s, b, h].
at::Tensor reference_attention(const at::Tensor& x, const std::string& name, const config::Config& config,
                               std::optional<int64_t> window, const Batch& batch, const at::Tensor& mask,
                               const Lookup& w);

/// Computes the MLP. `name` ends in "mlp.".
at::Tensor reference_mlp(const at::Tensor& x, const std::string& name, config::Activation activation,
                         const Lookup& w);

/// Returns the scalar loss.
at::Tensor reference_loss(const at::Tensor& logits, const Batch& batch, const Lookup& w);

}  // namespace shardwise::testing
