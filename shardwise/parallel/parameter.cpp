#include "shardwise/parallel/parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numeric>

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::parallel {

using at::Tensor;
using base::ShardRule;

namespace {

uint64_t name_hash(const std::string& name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

void draw_(Tensor& slice, const std::vector<int64_t>& shape, int64_t dim,
           const std::vector<ShardRule::Piece>& pieces, const Init& init, kernels::RandomKey key) {
  switch (init.kind) {
    case Init::Kind::normal:
      kernels::fill_normal_(slice, shape, dim, pieces, key, /*mean=*/0, init.scale);
      return;
    case Init::Kind::uniform:
      kernels::fill_uniform_(slice, shape, dim, pieces, key, -init.scale, init.scale);
      return;
    case Init::Kind::constant:
      slice.fill_(init.scale);
      return;
  }
}

/// Each segment of a fused parameter is drawn as the tensor that it is on disk.
void draw_segment_(Parameter& parameter, size_t segment, kernels::RandomKey key, int rank) {
  const ShardRule& rule = parameter.rule;
  ShardRule::Piece piece = rule.pieces(rank)[segment];
  std::vector<int64_t> shape = parameter.global_shape;
  shape[rule.dim] = rule.segments[segment].size();
  Tensor target = parameter.value.detach().narrow(rule.dim, piece.local_begin, piece.size);
  Tensor slice = at::empty(target.sizes(), target.options());
  piece.global_begin =
      base::mutated(base::Mutation::init_shards_alike) ? 0 : rule.segments[segment].range(rank).begin;
  piece.local_begin = 0;
  draw_(slice, shape, rule.dim, {piece}, parameter.init, key.fold(segment));
  target.copy_(slice);
}

}  // namespace

Init Init::kaiming_uniform(int64_t fan_in) {
  return {Kind::uniform, 1.0 / std::sqrt(static_cast<double>(fan_in))};
}

int64_t Parameter::global_numel() const {
  return std::accumulate(global_shape.begin(), global_shape.end(), int64_t{1}, std::multiplies<>());
}

Tensor Parameter::wanted_gradient() const {
  if (is_frozen()) return {};
  TORCH_CHECK_VALUE(main_grad.defined(), name, ": backward adds to main_grad; call zero_grad_ before it");
  return main_grad;
}

std::optional<Tensor> leaf_of(const ParameterPtr& parameter) {
  return parameter ? std::optional(parameter->value) : std::nullopt;
}

ParameterPtr make_parameter(std::string name, std::vector<int64_t> global_shape, ShardRule rule, Init init,
                            const comm::Group& group, at::ScalarType dtype) {
  const auto shape = rule.local_shape(global_shape, group.rank());
  Tensor value = at::empty(shape, at::TensorOptions(dtype)).requires_grad_();
  return std::make_shared<Parameter>(
      Parameter{std::move(name), std::move(global_shape), std::move(rule), init, std::move(value), Tensor()});
}

void initialise_(Parameter& parameter, kernels::RandomKey key, const comm::Group& group) {
  const kernels::RandomKey own = key.fold(name_hash(parameter.name));
  for (size_t segment = 0; segment < parameter.rule.segments.size(); ++segment) {
    draw_segment_(parameter, segment, own, group.rank());
  }
  if (parameter.rule.is_replicated()) {
    Tensor value = parameter.value.detach();
    draw_(value, parameter.global_shape, /*dim=*/0, /*pieces=*/{}, parameter.init, own.fold(0));
  }
}

void freeze_(Parameter& parameter) {
  parameter.value.requires_grad_(false);
  parameter.main_grad.reset();
}

void zero_grad_(Parameter& parameter) {
  if (parameter.is_frozen()) return;
  if (parameter.main_grad.defined()) {
    if (!base::mutated(base::Mutation::keep_main_grad)) parameter.main_grad.zero_();
    return;
  }
  const at::ScalarType dtype = kernels::accumulator_type(parameter.value.scalar_type());
  parameter.main_grad = at::zeros(parameter.value.sizes(), at::TensorOptions(dtype));
}

GradientKind ParamSpec::gradient_over(const std::string& axis) const {
  for (const OverAxis& over : axes) {
    if (over.axis == axis) return over.gradient;
  }
  TORCH_CHECK_VALUE(false, parameter->name, ": has no gradient placement over mesh axis ", axis);
}

}  // namespace shardwise::parallel
