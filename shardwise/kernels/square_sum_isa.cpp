#include "shardwise/kernels/square_sum_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
double sum(const T* x, int64_t n) {
  return sum_of<double>(n, [x](int64_t i) {
    const double value = widen(x[i]);
    return value * value;
  });
}

}  // namespace

template <class T>
SquareSumLoops<T> square_sum_loops() {
  return {sum<T>};
}
SHARDWISE_INSTANTIATE(SquareSumLoops, square_sum_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
