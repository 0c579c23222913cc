#include "shardwise/kernels/rotary_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void rotate_head(T* __restrict to, const T* __restrict from, int64_t half,
                 const Accumulator<T>* __restrict cos, const Accumulator<T>* __restrict sin,
                 Accumulator<T> direction) {
  for (int64_t i = 0; i < half; ++i) {
    const auto first = widen(from[i]), second = widen(from[half + i]), sine = direction * sin[i];
    to[i] = narrow<T>(first * cos[i] - second * sine);
    to[half + i] = narrow<T>(second * cos[i] + first * sine);
  }
}

/// f(to, from, row) for each head.
template <class T, class F>
void for_heads(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
               F f) {
  for (int64_t row = 0; row < extent.rows; ++row) {
    for (int64_t batch = 0; batch < extent.batch; ++batch) {
      T* to_head = to + row * to_strides.row + batch * to_strides.batch;
      const T* from_head = from + row * from_strides.row + batch * from_strides.batch;
      for (int64_t head = 0; head < extent.heads; ++head) {
        f(to_head + head * to_strides.head, from_head + head * from_strides.head, row);
      }
    }
  }
}

template <class T>
void rotate(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
            const Accumulator<T>* cos, const Accumulator<T>* sin, int direction) {
  const int64_t half = extent.head_dim / 2;
  for_heads(to, to_strides, from, from_strides, extent, [=](T* to_head, const T* from_head, int64_t row) {
    rotate_head(to_head, from_head, half, cos + row * half, sin + row * half,
                static_cast<Accumulator<T>>(direction));
  });
}

template <class T>
void copy(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent) {
  for_heads(to, to_strides, from, from_strides, extent, [=](T* to_head, const T* from_head, int64_t) {
    __builtin_memcpy(to_head, from_head, extent.head_dim * sizeof(T));
  });
}

}  // namespace

template <class T>
RotaryLoops<T> rotary_loops() {
  return {rotate<T>, copy<T>};
}
SHARDWISE_INSTANTIATE(RotaryLoops, rotary_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
