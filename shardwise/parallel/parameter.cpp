#include "shardwise/parallel/parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "shardwise/base/hash.h"
#include "shardwise/base/profile.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/quantized_parameter.h"

namespace shardwise::parallel {

using at::Tensor;
using base::ShardRule;

namespace {

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

/// Draws one segment of a fused parameter as if it were a tensor of its own, as it is in the checkpoint.
void draw_segment_(Parameter& parameter, size_t segment, kernels::RandomKey key, int rank) {
  const ShardRule& rule = parameter.rule;
  ShardRule::Piece piece = rule.pieces(rank)[segment];
  std::vector<int64_t> shape = parameter.global_shape;
  shape[rule.dim] = rule.segments[segment].size();
  Tensor target = parameter.value.detach().narrow(rule.dim, piece.local_begin, piece.size);
  Tensor slice = kernels::empty(target.sizes(), target.scalar_type());  // values are drawn on the CPU
  piece.global_begin = rule.segments[segment].range(rank).begin;
  piece.local_begin = 0;
  draw_(slice, shape, rule.dim, {piece}, parameter.init, key.fold(segment));
  target.copy_(slice);
}

}  // namespace

int64_t Parameter::global_numel() const {
  return std::accumulate(global_shape.begin(), global_shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Parameter::size(int64_t dim) const {
  if (!panels) return value.size(dim);
  return dim == 0 ? panels->rows : panels->width();
}

int64_t Parameter::bytes() const {
  return panels ? panels->bytes() : static_cast<int64_t>(value.nbytes());
}

Tensor Parameter::main_grad_if_trainable() const {
  if (is_frozen()) return {};
  TORCH_CHECK_VALUE(main_grad.defined(), name,
                    ": gradients are added to main_grad; call zero_grad_ before the forward [SW0453]");
  return main_grad;
}

Tensor Parameter::gradient_rows(const base::Range& rows) const {
  if (!owned_grad.defined()) return main_grad.narrow(/*dim=*/0, rows.begin, rows.size());
  return owned_grad.narrow(/*dim=*/0, rows.empty() ? 0 : rows.begin - owned_begin, rows.size());
}

base::Range Parameter::kept_rows() const {
  if (!owned_value.defined()) return {0, size(0)};
  return {owned_begin, owned_begin + owned_value.size(0)};
}

Tensor Parameter::value_rows(const base::Range& rows) const {
  if (!owned_value.defined()) return value.detach().narrow(/*dim=*/0, rows.begin, rows.size());
  return owned_value.narrow(/*dim=*/0, rows.empty() ? 0 : rows.begin - owned_begin, rows.size());
}

std::optional<Tensor> leaf_of(const ParameterPtr& parameter) {
  return parameter ? std::optional(parameter->value) : std::nullopt;
}

ParameterPtr make_parameter(std::string name, std::vector<int64_t> global_shape, ShardRule rule, Init init,
                            const comm::Group& group, at::ScalarType dtype) {
  const auto shape = rule.local_shape(global_shape, group.rank());
  Tensor value = at::empty(shape, at::TensorOptions(dtype).device(group.device())).requires_grad_();
  return std::make_shared<Parameter>(Parameter{std::move(name), std::move(global_shape), std::move(rule),
                                               init, std::move(value), Tensor(), nullptr});
}

ParameterPtr make_packed_parameter(std::string name, std::vector<int64_t> global_shape, ShardRule rule,
                                   Init init, const quant::Format& format, const comm::Group& group) {
  const int64_t in_features = global_shape.at(1);
  const bool shards_columns = !rule.is_replicated() && rule.dim == 1;
  TORCH_CHECK_VALUE(!shards_columns || rule.segments.size() == 1, name,
                    ": columns of a packed weight must be sharded as one segment; got ", rule.segments.size(),
                    " [SW0454]");
  const base::Range columns =
      shards_columns ? rule.segments[0].range(group.rank()) : base::Range{0, in_features};
  const int64_t rows = rule.local_shape(global_shape, group.rank())[0];
  auto panels =
      std::make_shared<quant::Panels>(quant::Panels::of(format, rows, in_features, columns, group.device()));
  return std::make_shared<Parameter>(Parameter{std::move(name), std::move(global_shape), std::move(rule),
                                               init, Tensor(), Tensor(), std::move(panels)});
}

namespace {

void initialize_packed_(Parameter& parameter, kernels::RandomKey key, const comm::Group& group) {
  const ParameterPtr dense =
      make_parameter(parameter.name, parameter.global_shape, parameter.rule, parameter.init, group,
                     parameter.is_quantized() ? at::kFloat : at::kBFloat16);
  initialize_(*dense, key, group);
  const Tensor w = dense->value.detach().cpu();
  quant::allocate_(*parameter.panels);
  if (!parameter.is_quantized()) return quant::pack_bf16_rows_(*parameter.panels, /*begin=*/0, w);
  quantize_rows_(parameter, /*begin=*/0, w, group_maxima(parameter, w, group));
}

}  // namespace

void initialize_(Parameter& parameter, kernels::RandomKey key, const comm::Group& group) {
  if (parameter.panels) return initialize_packed_(parameter, key, group);
  const kernels::RandomKey parameter_key = key.fold(base::hash_of(parameter.name));
  for (size_t segment = 0; segment < parameter.rule.segments.size(); ++segment) {
    draw_segment_(parameter, segment, parameter_key, group.rank());
  }
  if (parameter.rule.is_replicated()) {
    Tensor value = parameter.value.detach();
    Tensor drawn = value.cpu();
    draw_(drawn, parameter.global_shape, /*dim=*/0, /*pieces=*/{}, parameter.init, parameter_key.fold(0));
    if (!value.is_cpu()) value.copy_(drawn);
  }
}

void freeze_(Parameter& parameter) {
  parameter.value.requires_grad_(false);
  parameter.main_grad.reset();
}

void free_value_(Parameter& parameter) {
  if (parameter.panels) return;  // packed weights are allocated when they are loaded
  const Tensor& value = parameter.value;
  parameter.value = at::empty(value.sizes(), value.options().device(at::kMeta).requires_grad(false))
                        .requires_grad_(value.requires_grad());
}

void zero_grad_(Parameter& parameter) {
  if (parameter.is_frozen()) return;
  parameter.pending_backwards = 0;
  const base::ProfiledOp profiled("zero_gradient");
  if (parameter.main_grad.defined()) {
    parameter.main_grad.zero_();
    if (parameter.owned_grad.defined()) parameter.owned_grad.zero_();
    return;
  }
  const at::ScalarType dtype = kernels::accumulator_type(parameter.value.scalar_type());
  parameter.main_grad = at::zeros(parameter.value.sizes(), parameter.value.options().dtype(dtype));
}

void expect_backward_(Parameter& parameter) {
  ++parameter.pending_backwards;
}

void finish_backward_(Parameter& parameter) {
  TORCH_CHECK_VALUE(parameter.pending_backwards > 0, parameter.name,
                    ": the gradient that the forward added to main_grad must still be there in backward; got "
                    "zero_grad_ or another backward in between [SW0720]");
  --parameter.pending_backwards;
}

void check_backwards(const Parameter& parameter) {
  TORCH_CHECK_VALUE(parameter.pending_backwards == 0, parameter.name,
                    ": every loss computed with gradients needs its backward before gradients are used; got ",
                    parameter.pending_backwards,
                    " without; compute it under at::NoGradGuard instead [SW0721]");
}

GradientKind ParamSpec::gradient_over(const std::string& axis) const {
  for (const OverAxis& over : axes) {
    if (over.axis == axis) return over.gradient;
  }
  TORCH_CHECK_VALUE(false, parameter->name, ": has no gradient placement over mesh axis ", axis, " [SW0456]");
}

}  // namespace shardwise::parallel
