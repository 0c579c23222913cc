// A model's parameters in parts, which data-parallel ranks that shard their gradients sum one after the
// other.
#pragma once
#include <algorithm>
#include <vector>

#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// The parameters of a model in the order of the forward, in parts: the layers before the blocks, each block,
/// and the layers after them. Backward completes the gradients of part after part, from the last to the
/// first.
struct ParameterParts {
  std::vector<ParamSpecs> parts;  // at least one
  /// Layers of other parts use a parameter of the first part: its gradients grow from the forward on.
  bool is_first_tied = false;

  /// Returns the first part with a trained parameter; backward needs no part before it.
  size_t first_trained() const {
    const auto is_trained = [](const ParamSpec& spec) { return !spec.parameter->is_frozen(); };
    const auto has_trained = [&](const ParamSpecs& specs) { return std::ranges::any_of(specs, is_trained); };
    return size_t(std::ranges::find_if(parts, has_trained) - parts.begin());
  }
};

}  // namespace shardwise::parallel
