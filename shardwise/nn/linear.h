// The two linear layers of tensor parallelism. A layer holds weights; the placement of its input picks the
// crossing.
//
//   ColumnParallelLinear   stream → features sharded: contains f (I) or g (S<seq>)
//   RowParallelLinear      features sharded → stream: contains f* (I) or g* (S<seq>)
//
// A column layer, something elementwise or per head, then a row layer: one crossing in, one out, nothing
// between.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/collectives.h"
#include "shardwise/parallel/column_product.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;

struct LinearOptions {
  int64_t in_features;
  int64_t out_features;
  bool has_bias = false;
  parallel::Init init = parallel::Init::normal(0.02);
  std::optional<quant::Format> quantized = {};  // the weight's codes; without: numbers
  LinearOptions(int64_t in, int64_t out) : in_features(in), out_features(out) {}
};

/// W [out, in] cut by rows as `rule` says (dim 0; several segments for fused q|k|v or gate|up), bias with it.
class ColumnParallelLinear {
 public:
  /// Errors: c10::ValueError when the rule's segments do not add up to out_features.
  ColumnParallelLinear(const std::string& name, const LinearOptions& options, const base::ShardRule& rule,
                       const comm::Group& group, at::ScalarType dtype);
  /// Multiplies by a parameter that another layer owns, as a head tied to the embedding does.
  static ColumnParallelLinear tied_to(ParameterPtr weight) { return ColumnParallelLinear(std::move(weight)); }

  /// `x` [s, b, in] I, [s/t, b, in] S<0> or [s, b, in] R → [s, b, out/t] S<−1>. Cost: see
  /// parallel/column_product.h.
  template <parallel::ColumnInput In>
  Placed<Sharded<kFeature>> operator()(const Placed<In>& x, const Step& step) const {
    return parallel::column_product(x, parameters_, step);
  }

  /// An input that is cut by features already, as `features` says: [s, b, in/t] S<−1>. Forward: all_gather.
  /// Backward: reduce_scatter. Saved: the gathered input. Errors: c10::ValueError when `features` are not
  /// `in`.
  Placed<Sharded<kFeature>> of_features(const Placed<Sharded<kFeature>>& x, const base::Split& features,
                                        const Step& step) const;

  /// The same as the first without the bias (skip_bias_add): a fused kernel that follows adds `bias()`.
  template <parallel::ColumnInput In>
  Placed<Sharded<kFeature>> without_bias(const Placed<In>& x, const Step& step) const {
    return parallel::column_product(x, {parameters_.weight, nullptr}, step);
  }

  /// gather_output: the whole features on every rank, for the same work everywhere (To = Invariant; backward
  /// slices) or different work (To = Replicated; backward reduce_scatter). Only for a rule of one segment.
  template <parallel::Whole To, parallel::ColumnInput In>
  Placed<To> gathered(const Placed<In>& x, const Step& step) const {
    const auto y = (*this)(x, step);
    if constexpr (std::is_same_v<To, Invariant>) {
      return parallel::gather_to_invariant(y, output_split(), step.group);
    } else {
      return parallel::gather_to_replicated(y, output_split(), step.group);
    }
  }

  const ParameterPtr& weight() const { return parameters_.weight; }
  const ParameterPtr& bias() const { return parameters_.bias; }
  void append_parameters(UsedParameters& roles) const;

 private:
  explicit ColumnParallelLinear(ParameterPtr weight) : parameters_{std::move(weight), nullptr} {}
  base::Split output_split() const;
  parallel::LinearParameters parameters_;
};

/// W [out, in] cut by columns, input features following `rule` (dim 1); bias whole, added once after the
/// reduction.
class RowParallelLinear {
 public:
  RowParallelLinear(const std::string& name, const LinearOptions& options, const base::ShardRule& rule,
                    const comm::Group& group, at::ScalarType dtype);

  /// `x` [s, b, in/t] S<−1> → the stream, [s, b, out] I or [s/t, b, out] S<0>. Cost: see
  /// parallel/row_product.h.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Sharded<kFeature>>& x, const Step& step,
                    const parallel::RowOptions& options = {}) const {
    return parallel::row_product<Stream>(x, parameters_, step, options);
  }

  /// What a branch adds to the residual stream, [s, b, out] I or [s/t, b, out] S<0>, where `In` is the
  /// placement of the branch's input. On the residual stream (I, S) the reduction is deferred if the step
  /// allows it (defers_reductions). In a region that is entered and left by the caller (R) it is always
  /// pending.
  template <parallel::ColumnInput In>
  auto to_residual(const Placed<Sharded<kFeature>>& x, const Step& step,
                   const parallel::RowOptions& options = {}) const {
    if constexpr (std::same_as<In, Replicated>) {
      const parallel::LinearParameters weight{parameters_.weight, nullptr};
      return DeferredReduction<Invariant>(
          {parallel::row_product<Partial>(x, weight, step, options), parameters_.bias});
    } else {
      using Residual = DeferredReduction<In>;
      return defers_reductions(step) ? Residual(parallel::pending_row_product<In>(x, parameters_, step))
                                     : Residual(to<In>(x, step, options));
    }
  }

  /// A whole input, used for different work on each rank: every rank takes its features of it. Backward: a
  /// Partial. Both forms need a rule of one segment of single features.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Replicated>& x, const Step& step) const {
    return to<Stream>(parallel::slice<kFeature>(x, input_split(), step.group), step);
  }
  /// A whole input that is the same work everywhere. Backward: all_gather.
  template <ResidualStream Stream>
  Placed<Stream> to(const Placed<Invariant>& x, const Step& step) const {
    return to<Stream>(parallel::slice<kFeature>(x, input_split(), step.group), step);
  }

  const ParameterPtr& weight() const { return parameters_.weight; }
  const ParameterPtr& bias() const { return parameters_.bias; }
  void append_parameters(UsedParameters& roles) const;

 private:
  base::Split input_split() const;
  parallel::LinearParameters parameters_;
};

}  // namespace shardwise::nn
