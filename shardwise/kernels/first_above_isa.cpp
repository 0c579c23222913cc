#include "shardwise/kernels/first_above_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// Long enough that its vector loop counts and not its test, short enough that a hit is found soon.
constexpr int64_t kBlock = 256;

/// False for NaN.
template <class T>
bool is_within(T value, Accumulator<T> bound) {
  return widen(value) <= bound;
}

template <class T>
bool any_above(const T* values, Accumulator<T> bound) {
  int within = 1;
  for (int64_t i = 0; i < kBlock; ++i) within &= int{is_within(values[i], bound)};
  return within == 0;
}

template <class T>
int64_t first_above(const T* values, int64_t begin, int64_t end, Accumulator<T> bound) {
  int64_t i = begin;
  while (i + kBlock <= end && !any_above(values + i, bound)) i += kBlock;
  while (i < end && is_within(values[i], bound)) ++i;
  return i;
}

}  // namespace

template <class T>
FirstAboveLoops<T> first_above_loops() {
  return {first_above<T>};
}
SHARDWISE_INSTANTIATE(FirstAboveLoops, first_above_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
