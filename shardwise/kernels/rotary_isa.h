// The inner loops between a q|k|v product and the attention core: heads anywhere in memory, their elements
// contiguous.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// Elements from one row, batch or head to the next.
struct HeadStrides {
  int64_t row, batch, head;
};

struct HeadExtent {
  int64_t rows, batch, heads, head_dim;
};

/// A position's angles, `cos` and `sin` [positions, half], turn the first 2 · half elements of a head; the
/// others stay as they are. A row before its sequence's begin has the angles of position 0.
template <class A>
struct RotaryAngles {
  const A *cos, *sin;
  int64_t half;
  int64_t first_position;  // of the first row, in a sequence that begins with row 0
  const int64_t* begins;   // [batch], by how much less; null: none
};

template <class T>
struct HeadNorm {
  const T* weight;  // [d]
  double eps;
};

template <class T>
struct RotaryLoops {
  using A = Accumulator<T>;
  /// Rotates each head; direction −1 rotates back.
  void (*rotate)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent,
                 RotaryAngles<A> angles, int direction);
  void (*copy)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides, HeadExtent extent);
  /// RMSNorm of each head, then its rotation. `scratch` [d].
  void (*norm_rotate)(T* to, HeadStrides to_strides, const T* from, HeadStrides from_strides,
                      HeadExtent extent, RotaryAngles<A> angles, HeadNorm<T> norm, A* scratch);
  /// dx from dy, the gradient of norm_rotate(x); dx lies as x does. The weight's gradient is added to
  /// `weight_grad` [d], which may be null.
  void (*norm_rotate_backward)(T* dx, const T* x, HeadStrides x_strides, const T* dy, HeadStrides dy_strides,
                               HeadExtent extent, RotaryAngles<A> angles, HeadNorm<T> norm, A* weight_grad,
                               A* scratch);
};
SHARDWISE_PER_ISA(RotaryLoops, rotary_loops)

}  // namespace shardwise::kernels
