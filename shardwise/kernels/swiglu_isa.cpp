#include "shardwise/kernels/swiglu_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void forward_row(T* __restrict y, const T* __restrict gate, const T* __restrict up, int64_t f) {
  for (int64_t i = 0; i < f; ++i) {
    const auto g = widen(gate[i]);
    const auto sigmoid = 1 / (1 + exp_of(-g));  // g / (1 + …) would be divided again where exp is infinite
    y[i] = narrow<T>(g * sigmoid * widen(up[i]));
  }
}

template <class T>
void backward_row(T* __restrict d_gate, T* __restrict d_up, const T* __restrict dy, const T* __restrict gate,
                  const T* __restrict up, int64_t f) {
  for (int64_t i = 0; i < f; ++i) {
    const auto g = widen(gate[i]);
    const auto d = widen(dy[i]);
    const auto sigmoid = 1 / (1 + exp_of(-g));
    d_gate[i] = narrow<T>(d * widen(up[i]) * sigmoid * (1 + g * (1 - sigmoid)));
    d_up[i] = narrow<T>(d * g * sigmoid);
  }
}

template <class T>
void forward(T* y, const T* gate_up, int64_t rows, int64_t f) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* gate = gate_up + row * 2 * f;
    forward_row(y + row * f, gate, gate + f, f);
  }
}

template <class T>
void backward(T* d_gate_up, const T* dy, const T* gate_up, int64_t rows, int64_t f) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* gate = gate_up + row * 2 * f;
    T* d_gate = d_gate_up + row * 2 * f;
    backward_row(d_gate, d_gate + f, dy + row * f, gate, gate + f, f);
  }
}

}  // namespace

template <class T>
SwigluLoops<T> swiglu_loops() {
  return {forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(SwigluLoops, swiglu_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
