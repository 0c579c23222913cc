// Closed forms for the tests of collectives: what rank r's element i is, and layouts to pass it in.
#pragma once
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>

#include "shardwise/comm/group.h"

namespace shardwise::testing {

inline constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                             at::kLong,   at::kInt,   at::kByte};

/// Element i of rank r is (7i + 3r + 1) mod 11: sums over a few ranks are exact in every dtype.
inline at::Tensor value(at::IntArrayRef sizes, int rank, at::ScalarType dtype) {
  const int64_t numel = c10::multiply_integers(sizes);
  return at::remainder(at::arange(numel, at::kLong).mul(7).add(3 * rank + 1), 11).to(dtype).reshape(sizes);
}

/// Sum (or maximum) of `value` over the ranks, in fp64.
inline at::Tensor reduced(at::IntArrayRef sizes, int ranks, comm::Reduce reduce) {
  std::vector<at::Tensor> terms;
  for (int rank = 0; rank < ranks; ++rank) terms.push_back(value(sizes, rank, at::kDouble));
  const at::Tensor all = at::stack(terms);
  return reduce == comm::Reduce::sum ? all.sum(0) : std::get<0>(all.max(0));
}

enum class Layout { foreign, strided, in_arena, strided_in_arena };
inline constexpr Layout kLayouts[] = {Layout::foreign, Layout::strided, Layout::in_arena,
                                      Layout::strided_in_arena};

/// `x` in memory of that layout; strided ones have gaps between all elements.
inline at::Tensor laid_out(const comm::Group& group, const at::Tensor& x, Layout layout) {
  at::DimVector sizes(x.sizes());
  const bool strided = layout == Layout::strided || layout == Layout::strided_in_arena;
  if (strided) sizes.push_back(2);
  const bool in_arena = layout == Layout::in_arena || layout == Layout::strided_in_arena;
  at::Tensor memory = in_arena ? group.empty(sizes, x.scalar_type()) : at::empty(sizes, x.options());
  at::Tensor result = strided ? memory.select(-1, 1) : memory;
  result.copy_(x);
  return result;
}

inline bool equals(const at::Tensor& x, const at::Tensor& expected) {
  return x.defined() && x.sizes() == expected.sizes() &&
         at::equal(x.to(at::kDouble), expected.to(at::kDouble));
}

}  // namespace shardwise::testing
