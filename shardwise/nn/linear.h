// The two linear layers of tensor parallelism. The placement of the residual stream, I under TP and S<seq>
// under TP+SP, selects the conjugate collective that a layer contains (parallel/collectives.h).
//
//   layer                  input → output                       TP                 TP+SP
//   ColumnParallelLinear   residual stream → sharded features   f  (nothing)       g  (all_gather)
//   RowParallelLinear      sharded features → residual stream   f* (all_reduce)    g* (reduce_scatter)
//
// A tensor-parallel region is a column-parallel layer, then elementwise or per-head ops, then a row-parallel
// layer: one collective at its start, one at its end, none in between.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/collectives.h"
#include "shardwise/parallel/column_product.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;

/// The sizes of a linear layer, its initialization and the format of its weight.
struct LinearOptions {
  int64_t in_features;    // of the unsharded weight
  int64_t out_features;   // of the unsharded weight
  bool has_bias = false;  // adds a bias [out_features]
  parallel::Init init =
      parallel::Init::normal(0.02);          // of the weight; of the bias too if uniform, else it starts at 0
  std::optional<quant::Format> packed = {};  // the format of a weight in panels; empty: a tensor
  /// A dense layer without bias.
  LinearOptions(int64_t in, int64_t out) : in_features(in), out_features(out) {}
};

/// A linear layer whose output features are sharded: y = x Wᵀ + b, with W [out, in] sharded along dim 0 by
/// `rule` and the bias with it. A fused weight (q|k|v, gate|up) has one segment per part.
class ColumnParallelLinear {
 public:
  /// Allocates the local shards of weight and bias.
  /// Errors: c10::ValueError if `rule` does not shard dim 0 or its segments do not add up to out_features.
  ColumnParallelLinear(const std::string& name, const LinearOptions& options, const base::ShardRule& rule,
                       const comm::Group& group, at::ScalarType dtype);
  /// Returns a layer that shares `weight` with another layer, like an output head tied to the embedding.
  static ColumnParallelLinear tied_to(ParameterPtr weight) { return ColumnParallelLinear(std::move(weight)); }

  /// Returns x Wᵀ + b. Shapes: `x` [s, b, in] I, [s/t, b, in] S<0> or [s, b, in] R → [s, b, out/t] S<−1>.
  /// Forward, Backward, Cost: see parallel/column_product.h.
  template <parallel::ColumnInput In>
  Placed<Sharded<kFeature>> operator()(const Placed<In>& x, const Step& step) const {
    return parallel::column_product(x, parameters_, step);
  }

  /// Gathers an input whose features are sharded by `features` and returns x Wᵀ + b.
  /// Shapes: `x` [s, b, in/t] S<−1> → [s, b, out/t] S<−1>.
  /// Forward: all_gather. Backward: reduce_scatter.
  /// Saved: the gathered input.
  /// Errors: c10::ValueError if `features` is not a split of in_features.
  Placed<Sharded<kFeature>> gather_input(const Placed<Sharded<kFeature>>& x, const base::Split& features,
                                         const Step& step) const;

  /// Returns x Wᵀ for a fused kernel that adds `bias()` itself, like Megatron's skip_bias_add. Shapes and
  /// collectives are those of operator().
  template <parallel::ColumnInput In>
  Placed<Sharded<kFeature>> without_bias(const Placed<In>& x, const Step& step) const {
    return parallel::column_product(x, {parameters_.weight, nullptr}, step);
  }

  /// Returns x Wᵀ + b with all features on every rank, like Megatron's gather_output. Use To = Invariant if
  /// the next computation is the same on every rank, To = Replicated if it differs from rank to rank.
  /// Shapes: `x` of operator() → [s, b, out].
  /// Forward: all_gather of the output. Backward: slice (Invariant) or reduce_scatter (Replicated).
  /// Errors: c10::ValueError unless the rule has one segment of single features.
  template <parallel::Unsharded To, parallel::ColumnInput In>
  Placed<To> gather_output(const Placed<In>& x, const Step& step) const {
    const auto y = (*this)(x, step);
    if constexpr (std::is_same_v<To, Invariant>) {
      return parallel::gather_to_invariant(y, output_split(), step.group);
    } else {
      return parallel::gather_to_replicated(y, output_split(), step.group);
    }
  }

  /// Returns the weight.
  const ParameterPtr& weight() const { return parameters_.weight; }
  /// Returns the bias, or null.
  const ParameterPtr& bias() const { return parameters_.bias; }
  /// Returns how the output features are split over the ranks.
  /// Errors: c10::ValueError unless the rule has one segment of single features.
  base::Split output_split() const;
  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const;

 private:
  explicit ColumnParallelLinear(ParameterPtr weight) : parameters_{std::move(weight), nullptr} {}
  parallel::LinearParameters parameters_;
};

/// A linear layer whose input features are sharded: y = Σ_ranks x Wᵀ + b, with W [out, in] sharded along dim
/// 1 by `rule`. Every rank has the full bias, which is added once, after the reduction.
class RowParallelLinear {
 public:
  /// Allocates the local shard of the weight, and the bias.
  /// Errors: c10::ValueError if `rule` does not shard dim 1 or its segments do not add up to in_features.
  RowParallelLinear(const std::string& name, const LinearOptions& options, const base::ShardRule& rule,
                    const comm::Group& group, at::ScalarType dtype);

  /// Returns Σ_ranks x Wᵀ + b on the residual stream.
  /// Shapes: `x` [s, b, in/t] S<−1> → [s, b, out] I or [s/t, b, out] S<0>.
  /// Forward, Backward, Cost: see parallel/row_product.h.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Sharded<kFeature>>& x, const Step& step,
                    const parallel::RowOptions& options = {}) const {
    return parallel::row_product<Stream>(x, parameters_, step, options);
  }

  /// Returns the output of a residual branch whose input had placement `In`. If `In` is I or S<0>, the
  /// reduction is deferred where the step allows it (defers_reductions). If `In` is R, the caller has entered
  /// the parallel region itself and leaves it, so the reduction is always pending.
  /// Shapes: `x` [s, b, in/t] S<−1> → [s, b, out] I or [s/t, b, out] S<0>.
  template <parallel::ColumnInput In>
  auto to_residual(const Placed<Sharded<kFeature>>& x, const Step& step,
                   const parallel::RowOptions& options = {}) const {
    if constexpr (std::same_as<In, Replicated>) {
      const parallel::LinearParameters weight{parameters_.weight, nullptr};
      return DeferredReduction<Invariant>(
          {parallel::row_product<Partial>(x, weight, step, options), parameters_.bias});
    } else {
      if (!defers_reductions(step)) return DeferredReduction<In>(to<In>(x, step, options));
      return DeferredReduction<In>(parallel::pending_row_product<In>(x, parameters_, step));
    }
  }

  /// Slices a Replicated input along its features and returns Σ_ranks x Wᵀ + b.
  /// Shapes: `x` [s, b, in] R → the residual stream. Backward of x: zero padding (a Partial gradient).
  /// Errors: c10::ValueError unless the rule has one segment of single features.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Replicated>& x, const Step& step) const {
    return to<Stream>(parallel::slice<kFeature>(x, input_split(), step.group), step);
  }
  /// Slices an Invariant input along its features and returns Σ_ranks x Wᵀ + b.
  /// Shapes: `x` [s, b, in] I → the residual stream. Backward of x: all_gather.
  /// Errors: c10::ValueError unless the rule has one segment of single features.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Invariant>& x, const Step& step) const {
    return to<Stream>(parallel::slice<kFeature>(x, input_split(), step.group), step);
  }

  /// Returns the weight.
  const ParameterPtr& weight() const { return parameters_.weight; }
  /// Returns the bias, or null.
  const ParameterPtr& bias() const { return parameters_.bias; }
  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const;

 private:
  base::Split input_split() const;
  parallel::LinearParameters parameters_;
};

}  // namespace shardwise::nn
