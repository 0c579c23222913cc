#include "shardwise/parallel/flat_weights.h"

#include <c10/util/Exception.h>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {

FlatWeights::FlatWeights(const ParamSpecs& specs, const comm::Group& group, bool is_shared) : group_(group) {
  std::vector<ParameterPtr> parameters = trained_parameters(specs);
  const int64_t trained = local_elements(parameters);
  const std::vector<ParameterPtr> frozen = frozen_parameters(specs);
  parameters.insert(parameters.end(), frozen.begin(), frozen.end());
  const at::ScalarType dtype = value_dtype({specs});
  const int64_t elements = local_elements(parameters);
  const at::Tensor all = is_shared ? group.empty_shared({elements}, dtype) : group.empty({elements}, dtype);
  trained_ = all.narrow(/*dim=*/0, 0, trained);
  assign_values(all, parameters);
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
