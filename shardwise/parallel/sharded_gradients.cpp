#include "shardwise/parallel/sharded_gradients.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {
namespace {

/// The elements of 64 or more bytes, a cache line. Each part begins in the buffer where it would begin in a
/// line if all were one tensor, because sums of BLAS depend on the alignment.
constexpr int64_t kLine = 16;

at::Tensor zeroed(const comm::Group& group, int64_t elements, at::ScalarType dtype) {
  at::Tensor buffer = group.empty({elements}, dtype);
  return buffer.zero_();
}

/// Returns where the main gradients of each part are.
std::vector<at::Tensor> buffers_of(const std::vector<std::vector<ParameterPtr>>& parts, bool is_first_tied,
                                   const comm::Group& group, at::ScalarType dtype) {
  std::vector<int64_t> elements;
  for (const std::vector<ParameterPtr>& parameters : parts) elements.push_back(local_elements(parameters));
  const int64_t largest = *std::max_element(elements.begin() + (is_first_tied ? 1 : 0), elements.end());
  const at::Tensor shared = zeroed(group, largest + kLine, dtype);
  std::vector<at::Tensor> buffers;
  int64_t begin = 0;  // in one tensor of all
  for (size_t i = 0; i < elements.size(); ++i) {
    const bool is_apart = is_first_tied && i == 0;
    buffers.push_back(is_apart ? zeroed(group, elements[i], dtype)
                               : shared.narrow(/*dim=*/0, begin % kLine, elements[i]));
    begin += elements[i];
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
