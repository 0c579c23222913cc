// A parameter's local shard with its sharding rule, and how to reduce its gradient over a mesh axis.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/parameter.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/kernels/random.h"
#include "shardwise/quant/panels.h"

namespace shardwise::parallel {

using base::Init;

/// A model parameter: this rank's shard of it.
/// Shapes: `value` and `main_grad` are rule.local_shape(global_shape, rank). A packed weight, quantized
/// or in bf16, has `panels` instead of `value`, which stays undefined; it is frozen and serves products only.
/// A parameter has no placement: its gradient's placement depends on the residual stream with which it was
/// used (ParamSpec).
struct Parameter {
  std::string name;  // Hugging Face's; fused ones are named like layers.0.self_attn.qkv_proj.weight
  std::vector<int64_t> global_shape;  // of the unsharded parameter
  base::ShardRule rule;               // which slice each rank holds
  Init init;                          // of `initialize_`
  at::Tensor value;                   // a leaf; requires grad unless frozen
  at::Tensor main_grad;               // fp32 (fp64 for fp64); undefined until zero_grad_, and when frozen
  std::shared_ptr<quant::Panels> panels = nullptr;  // of a packed weight; null: `value` has it
  int64_t pending_backwards = 0;  // forwards that added to main_grad and whose backward has not run
  at::Tensor owned_grad = {};     // sharded_gradients.h: the step's gradients of the rows that the rank owns
  at::Tensor owned_value = {};    // sharded_weights.h: the weights of these rows; `value` is a buffer
  int64_t owned_begin = 0;        // the first of these rows

  /// Returns the number of elements of the unsharded parameter.
  int64_t global_numel() const;
  /// The local shard's size in `dim`.
  int64_t size(int64_t dim) const;
  /// The local shard's bytes, including scales and zero points.
  int64_t bytes() const;
  /// Returns true if the parameter is not trained.
  bool is_frozen() const { return panels || !value.requires_grad(); }
  /// Returns true if the weight has fewer bits than a floating-point number.
  bool is_quantized() const { return panels && panels->format.is_quantized(); }
  /// Returns main_grad, to which backward adds, or an undefined tensor if the parameter is frozen.
  /// Errors: c10::ValueError if it is trained and zero_grad_ was never called.
  at::Tensor main_grad_if_trainable() const;
  /// Returns the step's gradients of `rows` (of dim 0): of owned_grad, which must contain them, or else of
  /// main_grad.
  at::Tensor gradient_rows(const base::Range& rows) const;
  /// Returns the rows (of dim 0) whose weights the rank keeps: those of owned_value, or else all.
  base::Range kept_rows() const;
  /// Returns the weights of `rows` (of dim 0), without a graph: of owned_value, which must contain them, or
  /// else of `value`.
  at::Tensor value_rows(const base::Range& rows) const;
};
/// Layers, optimizer and autograd nodes share parameters.
using ParameterPtr = std::shared_ptr<Parameter>;

/// Returns the value of `parameter` as an optional argument of an autograd node; nullopt for a null pointer.
std::optional<at::Tensor> leaf_of(const ParameterPtr& parameter);

/// Allocates a parameter's local shard, uninitialized.
ParameterPtr make_parameter(std::string name, std::vector<int64_t> global_shape, base::ShardRule rule,
                            Init init, const comm::Group& group, at::ScalarType dtype);

/// Describes the local shard of a packed weight [out, in]; `initialize_` or a load allocates it.
/// Errors: c10::ValueError if `rule` shards columns as more than one segment.
ParameterPtr make_packed_parameter(std::string name, std::vector<int64_t> global_shape, base::ShardRule rule,
                                   Init init, const quant::Format& format, const comm::Group& group);

/// Initializes the local shard with random values that depend on `key`, the parameter's name and the
/// element's index in the full tensor; a quantized weight with the quantized values. Collective if ranks
/// share rows of a quantized weight. Cost: memory for the local shard, in fp32 if the weight is quantized, if
/// it is packed.
void initialize_(Parameter& parameter, kernels::RandomKey key, const comm::Group& group);

/// Freezes the parameter: from now on it has no gradient to compute, synchronize or store. Every rank must
/// freeze the same parameters.
void freeze_(Parameter& parameter);

/// Frees the value, of which shape and dtype remain: it is on the meta device until another is assigned.
void free_value_(Parameter& parameter);

/// Zeroes main_grad, which it allocates on the first call, and owned_grad. Does nothing if the parameter is
/// frozen.
void zero_grad_(Parameter& parameter);

/// Counts a forward that has added its gradient to main_grad itself (nn/linear_cross_entropy.h).
void expect_backward_(Parameter& parameter);
/// Counts that forward's backward.
/// Errors: c10::ValueError if the forward's gradient is lost, because zero_grad_ or another backward was
/// called since.
void finish_backward_(Parameter& parameter);
/// Checks that main_grad has no gradient of a forward without its backward.
/// Errors: c10::ValueError if it has.
void check_backwards(const Parameter& parameter);

/// How main_grad relates to the full gradient over one mesh axis.
enum class GradientKind {
  sharded,    // this rank's shard; KV heads that several ranks hold must be summed over them
  invariant,  // already equal on every rank
  partial,    // a partial sum, to be summed over the axis
};

/// A parameter and the kind of its gradient over each mesh axis (tp is the only one so far).
struct ParamSpec {
  /// The kind of the gradient over one axis.
  struct OverAxis {
    std::string axis;       // of the mesh, like "tp"
    GradientKind gradient;  // how main_grad relates to the full gradient
  };
  ParameterPtr parameter;      // never null
  std::vector<OverAxis> axes;  // one entry per axis

  /// Returns the spec of a parameter on a mesh whose only axis is tp.
  static ParamSpec over_tp(ParameterPtr parameter, GradientKind gradient) {
    return {std::move(parameter), {{"tp", gradient}}};
  }
  /// Returns the kind over `axis`. Errors: c10::ValueError if there is no such axis.
  GradientKind gradient_over(const std::string& axis) const;
};
/// The parameters of a model, in the same order on every rank.
using ParamSpecs = std::vector<ParamSpec>;

}  // namespace shardwise::parallel
