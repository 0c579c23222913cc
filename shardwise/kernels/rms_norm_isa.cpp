#include "shardwise/kernels/rms_norm_isa.h"

#include "shardwise/kernels/rms_row.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void forward(T* y, Accumulator<T>* rstd, const T* x, const T* weight, double eps, int64_t rows, int64_t h) {
  for (int64_t row = 0; row < rows; ++row, x += h, y += h) {
    rstd[row] = inverse_rms(x, eps, h);
    normalize_row(y, x, weight, rstd[row], h);
  }
}

template <class T>
void backward(T* dx, Accumulator<T>* weight_grad, const T* dy, const T* x, const T* weight,
              const Accumulator<T>* rstd, int64_t rows, int64_t h) {
  for (int64_t row = 0; row < rows; ++row, x += h, dy += h, dx += h) {
    rms_row_backward(dx, weight_grad, dy, x, weight, rstd[row], h);
  }
}

}  // namespace

template <class T>
RmsNormLoops<T> rms_norm_loops() {
  return {forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(RmsNormLoops, rms_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
