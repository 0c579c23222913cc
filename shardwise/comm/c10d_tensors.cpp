#include "shardwise/comm/c10d_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm {
namespace {

using Tensors = CollectiveBackend::Tensors;

struct Extent {
  const char* begin;
  const char* end;
};

Extent extent_of(const at::Tensor& x) {
  const char* const begin = static_cast<const char*>(x.const_data_ptr());
  return {begin, begin + at::detail::computeStorageNbytes(x.sizes(), x.strides(), x.element_size())};
}

/// Also true for interleaved tensors such as the columns of a matrix.
bool may_overlap(const Tensors& tensors) {
  std::vector<Extent> extents;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) extents.push_back(extent_of(tensor));
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  const auto overlaps_next = [](const Extent& a, const Extent& b) { return b.begin < a.end; };
  return std::ranges::adjacent_find(extents, overlaps_next) != extents.end();
}

}  // namespace

at::Tensor as_real(const at::Tensor& x, Reduce reduce, const char* call) {
  if (!x.is_complex()) return x;
  TORCH_CHECK_VALUE(reduce == Reduce::sum || reduce == Reduce::average, call,
                    ": complex tensors support SUM and AVG; got another reduction of ", x.scalar_type(),
                    "; gather the tensors and reduce them with torch [SW0560]");
  return at::view_as_real(x);
}

Tensors as_real(const Tensors& tensors, Reduce reduce, const char* call) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(as_real(tensor, reduce, call));
  return result;
}

Tensors without_overlap(const Tensors& tensors) {
  if (!may_overlap(tensors)) return tensors;
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace shardwise::comm
