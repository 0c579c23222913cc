#include "shardwise/train/inventory.h"

#include "shardwise/base/memory_counter.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::train {
namespace {

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
}

Holdings own_holdings(const nn::UsedParameters& roles, const std::vector<checkpoint::ParameterState>& state,
                      const comm::Group& group) {
  Holdings own;
  for (const nn::UsedParameter& role : roles) {
    own.weights += bytes_of(role.parameter->value);
    own.main_gradients += bytes_of(role.parameter->main_grad);
  }
  for (const auto& of_parameter : state) {
    own.optimizer +=
        bytes_of(of_parameter.master) + bytes_of(of_parameter.exp_avg) + bytes_of(of_parameter.exp_avg_sq);
  }
  own.peak_own = base::peak_bytes();
  own.peak_shared = group.symmetric_heap() ? group.symmetric_heap()->peak_bytes() : 0;
  return own;
}

}  // namespace

Inventory take_inventory(const nn::UsedParameters& roles,
                         const std::vector<checkpoint::ParameterState>& state, const comm::Group& group) {
  Inventory inventory{{}, comm::gather_values(own_holdings(roles, state, group), group)};
  for (const nn::UsedParameter& role : roles) {
    const parallel::Parameter& p = *role.parameter;
    Slices slices{p.name, p.global_shape, {}};
    for (int rank = 0; rank < group.size(); ++rank) {
      slices.by_rank.push_back(p.rule.local_shape(p.global_shape, rank));
    }
    inventory.parameters.push_back(std::move(slices));
  }
  return inventory;
}

}  // namespace shardwise::train
