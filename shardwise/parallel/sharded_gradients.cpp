#include "shardwise/parallel/sharded_gradients.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {
namespace {

at::Tensor zeroed(const comm::Group& group, int64_t elements, at::ScalarType dtype) {
  at::Tensor buffer = group.empty({elements}, dtype);
  return buffer.zero_();
}

/// Returns where the main gradients of each part are.
std::vector<at::Tensor> buffers_of(const std::vector<std::vector<ParameterPtr>>& parts, bool is_first_tied,
                                   const comm::Group& group, at::ScalarType dtype) {
  std::vector<base::Range> places;
  int64_t all = 0, largest = 0;  // elements
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t elements = local_elements(parts[i]), begin = aligned_like(all, 0);
    places.push_back({begin, begin + elements});
    if (i > 0 || !is_first_tied) largest = std::max(largest, places[i].end);
    all += elements;
  }
  const at::Tensor shared = zeroed(group, largest, dtype);
  std::vector<at::Tensor> buffers;
  for (const base::Range& place : places) {
    const bool is_apart = is_first_tied && buffers.empty();
    buffers.push_back(is_apart ? zeroed(group, place.size(), dtype)
                               : shared.narrow(/*dim=*/0, place.begin, place.size()));
  }
  return buffers;
}

}  // namespace

ShardedGradients::ShardedGradients(const ParameterParts& parts, const OwnedRows& owned,
                                   const comm::Group& group)
    : group_(group) {
  const std::optional<at::ScalarType> dtype = gradient_dtype(parts.parts);
  if (!dtype) return;
  std::vector<std::vector<ParameterPtr>> trained;
  for (const ParamSpecs& specs : parts.parts) trained.push_back(trained_parameters(specs));
  const std::vector<at::Tensor> buffers = buffers_of(trained, parts.is_first_tied, group, *dtype);
  for (size_t i = 0; i < trained.size(); ++i) {
    const std::vector<at::Tensor> gradients = parts_of_flat(buffers[i], trained[i]);
    for (size_t j = 0; j < gradients.size(); ++j) trained[i][j]->main_grad = gradients[j];
    const base::Split& owners = owned.elements()[i];
    const at::Tensor sums = at::zeros({owners.range(group.rank()).size()}, buffers[i].options());
    assign_owned_rows(sums, trained[i], owned, &Parameter::owned_grad);
    parts_.push_back({buffers[i], sums, owners});
  }
}

void ShardedGradients::sum_part_(size_t index) {
  if (parts_.empty() || parts_[index].buffer.numel() == 0) return;
  base::enter_part("");
  Part& part = parts_[index];
  const base::Range own = part.owners.range(group_.rank());
  at::Tensor sum = part.buffer.narrow(/*dim=*/0, own.begin, own.size());
  group_.reduce_scatter_out(sum, part.buffer, part.owners);
  part.owned.add_(sum);
  group_.barrier();
  part.buffer.zero_();
}

}  // namespace shardwise::parallel
