// The inner loops between a q|k|v product and attention. Heads have any strides; a head is contiguous.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Strides of rows, batch entries and heads, in elements.
struct HeadStrides {
  int64_t row, batch, head;
};

struct HeadExtent {
  int64_t rows, batch, heads, head_dim;
};

/// The rotary angles. `cos` and `sin` [positions, half] rotate the first 2 · half elements of a head; the
/// others stay unchanged. Left padding uses the angles of position 0.
template <class A>
struct RotaryAngles {
  const A *cos, *sin;
  int64_t half;
  int64_t first_position;  // position of the first row in a sequence without left padding
  const int64_t* begins;   // [batch], left padding of each sequence; null: none
};

template <class T>
struct HeadNorm {
  const T* weight;  // [d]
  double eps;
};

template <class T>
struct RotaryLoops {
  using A = Accumulator<T>;
  /// Rotates each head; `direction` −1 applies the inverse rotation.
  void (*rotate)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
                 RotaryAngles<A> angles, int direction);
  void (*copy)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent);
  /// Normalizes each head (RMSNorm), then rotates it. `scratch` [d].
  void (*norm_rotate)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides,
                      HeadExtent extent, RotaryAngles<A> angles, HeadNorm<T> norm, A* scratch);
  /// Computes dx from dy, the gradient of norm_rotate(x), and adds the weight's gradient to `weight_grad`
  /// [d], which may be null. `dx` has the strides of `x`.
  void (*norm_rotate_backward)(T* dx, const T* x, HeadStrides x_strides, const T* dy, HeadStrides dy_strides,
                               HeadExtent extent, RotaryAngles<A> angles, HeadNorm<T> norm, A* weight_grad,
                               A* scratch);
};
SHARDWISE_PER_ISA(RotaryLoops, rotary_loops)

}  // namespace shardwise::kernels
