#include "shardwise/kernels/rotary_isa.h"

#include "shardwise/kernels/rms_row.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class A>
struct Angle {
  const A *cos, *sin;
  int64_t half;
};

template <class A>
Angle<A> angle_of(const RotaryAngles<A>& angles, int64_t row, int64_t batch) {
  const int64_t position = angles.first_position + row - (angles.begins ? angles.begins[batch] : 0);
  const int64_t offset = (position < 0 ? 0 : position) * angles.half;
  return {angles.cos + offset, angles.sin + offset, angles.half};
}

// Rotates one head; `To` and `From` are the element type or the accumulator's.
template <class To, class From, class A>
void rotate_head(To* __restrict to, const From* __restrict from, int64_t d, Angle<A> angle, A direction) {
  const A* __restrict cos = angle.cos, * __restrict sin = angle.sin;
  const int64_t half = angle.half;
  for (int64_t i = 0; i < half; ++i) {
    const A first = widen(from[i]), second = widen(from[half + i]), sine = direction * sin[i];
    to[i] = narrow<To>(first * cos[i] - second * sine);
    to[half + i] = narrow<To>(second * cos[i] + first * sine);
  }
  for (int64_t i = 2 * half; i < d; ++i) to[i] = narrow<To>(widen(from[i]));
}

/// Calls f(to, from, row, batch) for each head.
template <class T, class F>
void for_heads(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
               F f) {
  for (int64_t row = 0; row < extent.rows; ++row) {
    for (int64_t batch = 0; batch < extent.batch; ++batch) {
      T* to_head = to + row * to_strides.row + batch * to_strides.batch;
      const T* from_head = from + row * from_strides.row + batch * from_strides.batch;
      for (int64_t head = 0; head < extent.heads; ++head) {
        f(to_head + head * to_strides.head, from_head + head * from_strides.head, row, batch);
      }
    }
  }
}

template <class T>
void rotate(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
            RotaryAngles<Accumulator<T>> angles, int direction) {
  for_heads(to, to_strides, from, from_strides, extent,
            [=](T* to_head, const T* from_head, int64_t row, int64_t batch) {
              rotate_head(to_head, from_head, extent.head_dim, angle_of(angles, row, batch),
                          static_cast<Accumulator<T>>(direction));
            });
}

template <class T>
void copy(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent) {
  for_heads(to, to_strides, from, from_strides, extent,
            [=](T* to_head, const T* from_head, int64_t, int64_t) {
              __builtin_memcpy(to_head, from_head, extent.head_dim * sizeof(T));
            });
}

// ---- RMSNorm, then rotation

template <class T>
void norm_rotate(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
                 RotaryAngles<Accumulator<T>> angles, HeadNorm<T> norm, Accumulator<T>* scratch) {
  using A = Accumulator<T>;
  const int64_t d = extent.head_dim;
  for_heads(to, to_strides, from, from_strides, extent,
            [=](T* to_head, const T* x, int64_t row, int64_t batch) {
              normalize_row(scratch, x, norm.weight, inverse_rms(x, norm.eps, d), d);
              rotate_head(to_head, static_cast<const A*>(scratch), d, angle_of(angles, row, batch), A{1});
            });
}

template <class T>
void norm_rotate_backward(T* dx, const T* x, HeadStrides x_strides, const T* dy, HeadStrides dy_strides,
                          HeadExtent extent, RotaryAngles<Accumulator<T>> angles, HeadNorm<T> norm,
                          Accumulator<T>* weight_grad, Accumulator<T>* scratch) {
  using A = Accumulator<T>;
  const int64_t d = extent.head_dim;
  for_heads(dx, x_strides, dy, dy_strides, extent,
            [=](T* dx_head, const T* dy_head, int64_t row, int64_t batch) {
              const T* x_head = x + (dx_head - dx);
              rotate_head(scratch, dy_head, d, angle_of(angles, row, batch), A{-1});
              rms_row_backward(dx_head, weight_grad, scratch, x_head, norm.weight,
                               inverse_rms(x_head, norm.eps, d), d);
            });
}

}  // namespace

template <class T>
RotaryLoops<T> rotary_loops() {
  return {rotate<T>, copy<T>, norm_rotate<T>, norm_rotate_backward<T>};
}
SHARDWISE_INSTANTIATE(RotaryLoops, rotary_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
