// Closed forms for the tests of collectives: what rank r's element i is, and layouts to pass it in.
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

/// Whether the operation has a meaning for the dtype.
inline bool takes(comm::Reduce reduce, at::ScalarType dtype) {
  if (reduce == comm::Reduce::average) return at::isFloatingType(dtype);
  const bool is_bitwise =
      reduce == comm::Reduce::bit_and || reduce == comm::Reduce::bit_or || reduce == comm::Reduce::bit_xor;
  return !is_bitwise || !at::isFloatingType(dtype);
}

/// Element i of rank r is (7i + 3r + 1) mod 11: sums over a few ranks are exact in every dtype. That of a
/// bool is (6i + r) mod 11 < 5: up to five ranks agree on true in places, and on false in others.
inline at::Tensor value(at::IntArrayRef sizes, int rank, at::ScalarType dtype) {
  const at::Tensor i = at::arange(c10::multiply_integers(sizes), at::kLong);
  if (dtype == at::kBool) return at::remainder(i.mul(6).add(rank), 11).lt(5).reshape(sizes);
  return at::remainder(i.mul(7).add(3 * rank + 1), 11).to(dtype).reshape(sizes);
}

/// One more term of a reduction, in exact integers.
inline at::Tensor with_term(const at::Tensor& result, const at::Tensor& term, comm::Reduce reduce) {
  switch (reduce) {
    case comm::Reduce::sum:
    case comm::Reduce::average:
      return result.add(term);
    case comm::Reduce::product:
      return result.mul(term);
    case comm::Reduce::min:
      return result.minimum(term);
    case comm::Reduce::max:
      return result.maximum(term);
    case comm::Reduce::bit_and:
      return result.bitwise_and(term);
    case comm::Reduce::bit_or:
      return result.bitwise_or(term);
    case comm::Reduce::bit_xor:
      return result.bitwise_xor(term);
  }
  return {};
}

/// Reduction of `value` over the ranks: exact, then rounded to the dtype, or wrapped, or not zero.
inline at::Tensor reduced(at::IntArrayRef sizes, int ranks, comm::Reduce reduce,
                          at::ScalarType dtype = at::kDouble) {
  at::Tensor result = value(sizes, /*rank=*/0, dtype).to(at::kLong);
  for (int rank = 1; rank < ranks; ++rank) {
    result = with_term(result, value(sizes, rank, dtype).to(at::kLong), reduce);
  }
  return reduce == comm::Reduce::average ? result.to(at::kDouble).div(ranks).to(dtype) : result.to(dtype);
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
