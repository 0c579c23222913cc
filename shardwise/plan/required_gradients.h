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
  RequiredGradients norm1;       // the norm before attention
  RequiredGradients qkv;         // the projection to queries, keys and values
  RequiredGradients attention;   // whose weights are those of the norms of queries and keys, if there are any
  RequiredGradients out;         // the projection after attention
  RequiredGradients norm2;       // the norm before the MLP
  RequiredGradients mlp;         // the MLP's first GEMM
  RequiredGradients activation;  // between the MLP's GEMMs
  RequiredGradients down;        // the MLP's last GEMM
  /// Gradients reach each layer through the layers after it, so the last has a backward if any has.
  bool any() const { return down.any; }
  bool operator==(const RequiredByBlock&) const = default;
};

/// The required gradients of final norm and head. The weight of a tied head is the embedding's.
struct RequiredByHead {
  RequiredGradients norm;  // the final norm
  RequiredGradients head;  // the product with the vocabulary
};

/// Returns the required gradients of the embedding if all parameters are trained.
RequiredGradients all_of_embedding();
/// Returns the required gradients of a block if all parameters are trained.
RequiredByBlock all_of_block(const config::Config& config);
/// Returns the required gradients of final norm and head if all parameters are trained.
RequiredByHead all_of_head();

/// The required gradients of a model's layers.
struct RequiredByModel {
  RequiredGradients embedding;          // its input, token ids, requires none
  std::vector<RequiredByBlock> blocks;  // in the order of the forward
  RequiredByHead head;                  // with the final norm
};
/// Returns what is required if the parameters named in `frozen` are not trained. The table is the config's.
RequiredByModel required_by_model(const config::Config& config, const config::ParameterTable& table,
                                  const std::set<std::string>& frozen);

}  // namespace shardwise::plan
