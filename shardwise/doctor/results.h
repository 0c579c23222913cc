// The results of a pass one after another, each put together from what the ranks hold.
#pragma once
#include <functional>
#include <string>

#include "shardwise/doctor/pass.h"

namespace shardwise::doctor {

/// What a result is: "layer 3", "self_attn.qkv_proj.weight", gradient.
struct Label {
  std::string where;   // embedding, layer N, final norm, head, loss
  std::string tensor;  // a parameter's name within it, or "output", "attention output"
  bool is_gradient = false;

  /// "gradient of self_attn.qkv_proj.weight".
  std::string text() const { return is_gradient ? "gradient of " + tensor : tensor; }
  bool operator==(const Label&) const = default;
  auto operator<=>(const Label&) const = default;
};

struct Result {
  Label label;
  at::Tensor whole;   // of the unsharded model's shape, in the dtype that it is kept in
  int differing = 0;  // ranks that hold other bits than the first holder of an element
};
using Visit = std::function<void(const Result&)>;

/// Collective: calls `visit` on every rank for each result: activations and the loss in the forward's order,
/// then gradients in the backward's, of each stage's output before those of its parameters. A whole tensor is
/// dropped after its visit. Cost: one all_gather or all_reduce each.
void for_each_result(const model::DecoderWeights& weights, const Pass& pass, const Way& way,
                     const Visit& visit);

/// Collective: `tensor` of `parameter`, its value or main gradient, whole and as it is; `differing` ranks
/// hold other bits.
struct Whole {
  at::Tensor tensor;
  int differing = 0;
};
Whole whole_of(const parallel::Parameter& parameter, const at::Tensor& tensor, const comm::Group& group);

/// Where a parameter belongs, and what it is called there.
Label label_of(const std::string& parameter);

}  // namespace shardwise::doctor
