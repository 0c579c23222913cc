#include "tests/fuzz/target.h"

namespace shardwise::fuzz {

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const auto group :
       {config_targets, tensor_targets, weight_targets, text_targets, command_targets, rendezvous_targets}) {
    for (Target& target : group()) all.push_back(std::move(target));
  }
  return all;
}

Target target(const std::string& name) {
  std::string known;
  for (Target& target : targets()) {
    if (target.name == name) return target;
    known += " " + target.name;
  }
  throw std::invalid_argument("the target must be one of" + known + "; got '" + name + "'");
}

}  // namespace shardwise::fuzz
