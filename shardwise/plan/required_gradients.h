// The gradients that a step's backward computes when some parameters are frozen.
//
// The rule is autograd's: a layer has a backward if its input requires a gradient or one of its parameters is
// trained, and then its output requires a gradient. Saved tensors, communication and peak memory depend on
// it.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "shardwise/config/parameters.h"

namespace shardwise::plan {

/// The gradients that one layer's backward computes.
struct RequiredGradients {
  bool input;   // of the layer's input
  bool weight;  // of its weight
  bool any;     // of input, weight or bias
  bool operator==(const RequiredGradients&) const = default;
};

/// The required gradients of a block's layers, in forward order. The activation adds the bias of a GeLU MLP's
/// first GEMM, so it computes that bias's gradient.
struct RequiredByBlock {
  RequiredGradients norm1, qkv, attention, out, norm2, mlp, activation, down;
  /// Gradients reach each layer through the layers after it, so the last has a backward if any has.
  bool any() const { return down.any; }
  bool operator==(const RequiredByBlock&) const = default;
};

/// The required gradients of final norm and head. The weight of a tied head is the embedding's.
struct RequiredByHead {
  RequiredGradients norm, head;
};

/// Of a model whose parameters are all trained.
RequiredGradients all_of_embedding();
RequiredByBlock all_of_block(const config::Config& config);
RequiredByHead all_of_head();

/// The required gradients of a model's layers.
struct RequiredByModel {
  RequiredGradients embedding;
  std::vector<RequiredByBlock> blocks;
  RequiredByHead head;
};
/// Returns what is required if the parameters named in `frozen` are not trained. The table is the config's.
RequiredByModel required_by_model(const config::Config& config, const config::ParameterTable& table,
                                  const std::set<std::string>& frozen);

}  // namespace shardwise::plan
