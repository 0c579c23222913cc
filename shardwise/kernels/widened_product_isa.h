// Products of bf16 matrices by fp32 multiply-adds, for processors without bf16 instructions, where torch's
// take several times as long. Blocks of both operands are widened as they are packed.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// y = a·b. Shapes: `a` [rows, depth] and `y` [rows, columns] with contiguous rows; `b` [depth, columns], or
/// [columns, depth] if it is transposed, with contiguous rows. Strides are in elements.
template <class T>
struct WidenedProduct {
  T* y;
  int64_t y_stride;
  const T *a, *b;
  int64_t a_stride, b_stride;
  bool b_is_transposed;
  int64_t rows, depth, columns;
};

/// to += dyᵀ·x. Shapes: `dy` [depth, rows], `x` [depth, columns], `to` [rows, columns]. Strides are in
/// elements.
template <class T>
struct WidenedGradient {
  Accumulator<T>* to;
  int64_t to_stride;
  const T *dy, *x;
  int64_t dy_stride, x_stride;
  int64_t rows, depth, columns;
};

/// Columns that are packed together.
inline constexpr int64_t kWidenedColumns = 32;

template <class T>
struct WidenedProductLoops {
  /// Computes the columns [begin, end) of y; `begin` is a multiple of kWidenedColumns. Sums in fp32, in the
  /// order of the depth: an element has the same bits in a product of any other rows and columns. Uses 256 KB
  /// of the stack.
  void (*multiply)(const WidenedProduct<T>& product, int64_t begin, int64_t end);
  /// Adds to the columns [begin, end) of `to`, likewise; 256 terms are summed before they are added.
  void (*add)(const WidenedGradient<T>& gradient, int64_t begin, int64_t end);
};
SHARDWISE_PER_ISA(WidenedProductLoops, widened_product_loops)

}  // namespace shardwise::kernels
