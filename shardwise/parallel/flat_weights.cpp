#include "shardwise/parallel/flat_weights.h"

#include <c10/util/Exception.h>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {

FlatWeights::FlatWeights(const ParamSpecs& specs, const comm::Group& group, bool is_shared) : group_(group) {
  std::vector<ParameterPtr> parameters = trained_parameters(specs);
  const int64_t trained = local_elements(parameters);
  for (const ParamSpec& spec : specs)
    if (spec.parameter->is_frozen()) parameters.push_back(spec.parameter);
  const at::ScalarType dtype = parameters[0]->value.scalar_type();
  for (const ParameterPtr& parameter : parameters)
    TORCH_CHECK_VALUE(parameter->value.scalar_type() == dtype, parameter->name, ": must have dtype ", dtype,
                      " as the other parameters; got ", parameter->value.scalar_type(), " [SW0867]");
  const int64_t elements = local_elements(parameters);
  const at::Tensor all = is_shared ? group.empty_shared({elements}, dtype) : group.empty({elements}, dtype);
  trained_ = all.narrow(/*dim=*/0, 0, trained);
  const std::vector<at::Tensor> parts = parts_of_flat(all, parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->value = parts[i].detach().requires_grad_(parameters[i]->value.requires_grad());
}

void FlatWeights::all_gather_(const OwnedRows& owned) {
  base::enter_part("");
  int64_t begin = 0;
  for (const base::Split& owners : owned.elements()) {
    if (owners.size() == 0) continue;
    const base::Range own = owners.range(group_.rank());
    at::Tensor part = trained_.narrow(/*dim=*/0, begin, owners.size());
    group_.all_gather_out(part, part.narrow(/*dim=*/0, own.begin, own.size()), owners);
    begin += owners.size();
  }
}

void FlatWeights::broadcast_(const OwnedRows& owned, const HostGroups& hosts) const {
  base::enter_part("");
  int64_t begin = 0;
  for (const base::Split& owners : owned.elements()) {
    for (int host = 0; host < hosts.across.size(); ++host) {
      const base::Range rows = owners.range(host * hosts.within.size() + hosts.within.rank());
      at::Tensor part = trained_.narrow(/*dim=*/0, begin + rows.begin, rows.size());
      if (part.numel() > 0) hosts.across.broadcast_(part, /*root=*/host);
    }
    begin += owners.size();
  }
}

}  // namespace shardwise::parallel
