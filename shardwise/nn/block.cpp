#include "shardwise/nn/block.h"

#include <algorithm>

namespace shardwise::nn {

void BlockLayers::append_parameters(UsedParameters& parameters) const {
  norm1.append_parameters(parameters);
  qkv.append_parameters(parameters);
  attend.append_parameters(parameters);
  out.append_parameters(parameters);
  norm2.append_parameters(parameters);
  mlp.append_parameters(parameters);
}

bool BlockLayers::is_trained() const {
  UsedParameters parameters;
  append_parameters(parameters);
  return std::ranges::any_of(parameters,
                             [](const UsedParameter& used) { return !used.parameter->is_frozen(); });
}

}  // namespace shardwise::nn
