#include "shardwise/nn/block.h"

#include <algorithm>

namespace shardwise::nn {

void BlockLayers::append_roles(Roles& roles) const {
  norm1.append_roles(roles);
  qkv.append_roles(roles);
  attend.append_roles(roles);
  out.append_roles(roles);
  norm2.append_roles(roles);
  mlp.append_roles(roles);
}

bool BlockLayers::is_trained() const {
  Roles roles;
  append_roles(roles);
  return std::ranges::any_of(roles, [](const Role& role) { return !role.parameter->is_frozen(); });
}

}  // namespace shardwise::nn
