// Iterates over the results of a trace, each gathered from the ranks to its full tensor.
#pragma once
#include <functional>
#include <string>

#include "shardwise/doctor/trace.h"

namespace shardwise::doctor {

/// The name of a result: "layer 3", "self_attn.qkv_proj.weight", gradient.
struct Label {
  std::string module;  // embedding, layer N, final norm, head, loss
  std::string tensor;  // a parameter's name within it, or "output", "attention output"
  bool is_gradient = false;

  /// "gradient of self_attn.qkv_proj.weight".
  std::string text() const { return is_gradient ? "gradient of " + tensor : tensor; }
  bool operator==(const Label&) const = default;
  auto operator<=>(const Label&) const = default;
};

struct Result {
  Label label;
  at::Tensor full;    // shaped as in the unsharded model, in the dtype of the shards
  int differing = 0;  // ranks whose bits differ from those of the first holder of an element
};
using Visit = std::function<void(const Result&)>;

/// Calls `visit` on every rank for each result: activations and the loss in forward order, then gradients in
/// backward order, each stage's output before its parameters. Collective. Frees each full tensor after its
/// visit. Cost: one all_gather or all_reduce per result.
void for_each_result(const model::DecoderWeights& weights, const Trace& trace, const RunConfig& run_config,
                     const Visit& visit);

/// An unsharded tensor, and the number of ranks whose shards have other bits.
struct FullTensor {
  at::Tensor tensor;
  int differing = 0;
};
/// Gathers `tensor`, the value or main gradient of `parameter`, without changing its bits. Collective.
FullTensor full_tensor(const parallel::Parameter& parameter, const at::Tensor& tensor,
                       const comm::Group& group);

/// Returns a parameter's module and its name within that module.
Label label_of(const std::string& parameter);

}  // namespace shardwise::doctor
