// Inputs and expected results for the tests of collectives, and the memory layouts of inputs.
#pragma once
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/remainder.h>

#include <iterator>

#include "shardwise/comm/group.h"

namespace shardwise::testing {

inline constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                                             at::kInt,    at::kShort, at::kChar,     at::kByte, at::kBool};
inline constexpr comm::Reduce kReduces[] = {
    comm::Reduce::sum,     comm::Reduce::product, comm::Reduce::min,    comm::Reduce::max,
    comm::Reduce::average, comm::Reduce::bit_and, comm::Reduce::bit_or, comm::Reduce::bit_xor};
static_assert(std::size(kReduces) == comm::kReductions);

/// Returns true if the reduction is defined for the dtype.
inline bool supports(comm::Reduce reduce, at::ScalarType dtype) {
  if (reduce == comm::Reduce::average) return at::isFloatingType(dtype);
  const bool is_bitwise =
      reduce == comm::Reduce::bit_and || reduce == comm::Reduce::bit_or || reduce == comm::Reduce::bit_xor;
  return !is_bitwise || !at::isFloatingType(dtype);
}

/// Returns rank r's tensor: element i is ((7i + 3r + 1) mod 251) mod 11, so that sums over a few ranks are
/// exact in every dtype, while a shift of elements or a change of ranks shows unless it is by a multiple of
/// 251. A bool element says whether that of 6i + r is below 5: up to five ranks have equal and different
/// elements.
inline at::Tensor value(at::IntArrayRef sizes, int rank, at::ScalarType dtype) {
  const at::Tensor i = at::arange(c10::multiply_integers(sizes), at::kLong);
  const bool is_bool = dtype == at::kBool;
  const at::Tensor position = is_bool ? i.mul(6).add(rank) : i.mul(7).add(3 * rank + 1);
  const at::Tensor element = at::remainder(at::remainder(position, 251), 11);
  return (is_bool ? element.lt(5) : element.to(dtype)).reshape(sizes);
}

/// Adds one rank's tensor to a reduction, in exact integers.
inline at::Tensor reduce_pair(const at::Tensor& result, const at::Tensor& x, comm::Reduce reduce) {
  switch (reduce) {
    case comm::Reduce::sum:
    case comm::Reduce::average:
      return result.add(x);
    case comm::Reduce::product:
      return result.mul(x);
    case comm::Reduce::min:
      return result.minimum(x);
    case comm::Reduce::max:
      return result.maximum(x);
    case comm::Reduce::bit_and:
      return result.bitwise_and(x);
    case comm::Reduce::bit_or:
      return result.bitwise_or(x);
    case comm::Reduce::bit_xor:
      return result.bitwise_xor(x);
  }
  return {};
}

/// Returns the reduction of `value` over the ranks: computed exactly, then cast to `dtype` (floats round,
/// integers wrap, bool is "not zero").
inline at::Tensor reduced(at::IntArrayRef sizes, int ranks, comm::Reduce reduce,
                          at::ScalarType dtype = at::kDouble) {
  at::Tensor result = value(sizes, /*rank=*/0, dtype).to(at::kLong);
  for (int rank = 1; rank < ranks; ++rank) {
    result = reduce_pair(result, value(sizes, rank, dtype).to(at::kLong), reduce);
  }
  return reduce == comm::Reduce::average ? result.to(at::kDouble).div(ranks).to(dtype) : result.to(dtype);
}

enum class InputLayout { unregistered, strided, in_heap, strided_in_heap };
inline constexpr InputLayout kInputLayouts[] = {InputLayout::unregistered, InputLayout::strided,
                                                InputLayout::in_heap, InputLayout::strided_in_heap};

/// Returns a copy of `x` in that layout; strided layouts have gaps between all elements.
inline at::Tensor with_layout(const comm::Group& group, const at::Tensor& x, InputLayout layout) {
  at::DimVector sizes(x.sizes());
  const bool strided = layout == InputLayout::strided || layout == InputLayout::strided_in_heap;
  if (strided) sizes.push_back(2);
  const bool in_heap = layout == InputLayout::in_heap || layout == InputLayout::strided_in_heap;
  at::Tensor memory = in_heap ? group.empty(sizes, x.scalar_type()) : at::empty(sizes, x.options());
  at::Tensor result = strided ? memory.select(-1, 1) : memory;
  result.copy_(x);
  return result;
}

inline bool equals(const at::Tensor& x, const at::Tensor& expected) {
  return x.defined() && x.sizes() == expected.sizes() &&
         at::equal(x.to(at::kDouble), expected.to(at::kDouble));
}

}  // namespace shardwise::testing
