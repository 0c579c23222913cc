#include "shardwise/nn/block.h"

namespace shardwise::nn {

void BlockLayers::append_roles(Roles& roles) const {
  norm1.append_roles(roles);
  qkv.append_roles(roles);
  out.append_roles(roles);
  norm2.append_roles(roles);
  mlp.append_roles(roles);
}

}  // namespace shardwise::nn
