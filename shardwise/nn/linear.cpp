#include "shardwise/nn/linear.h"

namespace shardwise::nn {

using base::ShardRule;
using parallel::Init;

namespace {

ParameterPtr make_bias(const std::string& name, const LinearOptions& options, const ShardRule& rule,
                       const comm::Group& group, at::ScalarType dtype) {
  if (!options.has_bias) return nullptr;
  const bool is_uniform =
      options.init.kind == Init::Kind::uniform;  // like torch.nn.Linear, which draws its bias too
  const Init init = is_uniform ? Init::kaiming_uniform(options.in_features) : Init::constant(0);
  return parallel::make_parameter(name + ".bias", {options.out_features}, rule, init, group, dtype);
}

ParameterPtr make_weight(const std::string& name, const LinearOptions& options, const ShardRule& rule,
                         const comm::Group& group, at::ScalarType dtype) {
  const std::vector<int64_t> shape{options.out_features, options.in_features};
  if (options.packed)
    return parallel::make_packed_parameter(name + ".weight", shape, rule, options.init, *options.packed,
                                           group);
  return parallel::make_parameter(name + ".weight", shape, rule, options.init, group, dtype);
}

void check_rule(const std::string& name, const ShardRule& rule, int64_t dim, int64_t features) {
  int64_t covered = 0;
  for (const base::Segment& segment : rule.segments) covered += segment.size();
  TORCH_CHECK_VALUE(rule.dim == dim && covered == features, name, ": the rule must shard dim ", dim, " of ",
                    features, " features; got dim ", rule.dim, " of ", covered, " [SW0435]");
}

base::Split only_split(const ParameterPtr& weight) {
  const ShardRule& rule = weight->rule;
  TORCH_CHECK_VALUE(rule.segments.size() == 1 && rule.segments[0].unit == 1, weight->name,
                    ": gathering or slicing features needs a rule of one segment of single features; got ",
                    rule.segments.size(), " segments [SW0436]");
  return rule.segments[0].split;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, const LinearOptions& options,
                                           const ShardRule& rule, const comm::Group& group,
                                           at::ScalarType dtype) {
  check_rule(name, rule, /*dim=*/0, options.out_features);
  parameters_.weight = make_weight(name, options, rule, group, dtype);
  parameters_.bias = make_bias(name, options, rule, group, dtype);
}

base::Split ColumnParallelLinear::output_split() const {
  return only_split(parameters_.weight);
}

Placed<Sharded<kFeature>> ColumnParallelLinear::gather_input(const Placed<Sharded<kFeature>>& x,
                                                             const base::Split& features,
                                                             const Step& step) const {
  TORCH_CHECK_VALUE(features.size() == weight()->size(1), weight()->name, ": the input must have ",
                    weight()->size(1), " features; got a split of ", features.size(), " [SW0437]");
  return (*this)(parallel::gather_to_replicated(x, features, step.group), step);
}

void ColumnParallelLinear::append_parameters(UsedParameters& parameters) const {
  parameters.push_back({parameters_.weight, ParameterUse::sharded});
  if (parameters_.bias) parameters.push_back({parameters_.bias, ParameterUse::sharded});
}

RowParallelLinear::RowParallelLinear(const std::string& name, const LinearOptions& options,
                                     const ShardRule& rule, const comm::Group& group, at::ScalarType dtype) {
  check_rule(name, rule, /*dim=*/1, options.in_features);
  parameters_.weight = make_weight(name, options, rule, group, dtype);
  parameters_.bias = make_bias(name, options, ShardRule::replicated(), group, dtype);
}

base::Split RowParallelLinear::input_split() const {
  return only_split(parameters_.weight);
}

void RowParallelLinear::append_parameters(UsedParameters& parameters) const {
  parameters.push_back({parameters_.weight, ParameterUse::sharded});
  if (parameters_.bias) parameters.push_back({parameters_.bias, ParameterUse::on_residual});
}

}  // namespace shardwise::nn
