#include "shardwise/nn/block.h"

#include <algorithm>

namespace shardwise::nn {

void BlockLayers::append_parameters(UsedParameters& roles) const {
  norm1.append_parameters(roles);
  qkv.append_parameters(roles);
  attend.append_parameters(roles);
  out.append_parameters(roles);
  norm2.append_parameters(roles);
  mlp.append_parameters(roles);
}

bool BlockLayers::is_trained() const {
  UsedParameters roles;
  append_parameters(roles);
  return std::ranges::any_of(roles, [](const UsedParameter& role) { return !role.parameter->is_frozen(); });
}

}  // namespace shardwise::nn
