// The keys or values that a KV cache holds: in the model's dtype, or in int8 with a scale per row.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// One layer's cached keys or values of a sequence.
struct StoredHeads {
  at::Tensor rows;    // [k, capacity, d], contiguous
  at::Tensor scales;  // [k, capacity] fp32 if rows are int8; otherwise undefined

  /// Returns whether a stored element is `rows` · `scales`.
  bool is_quantized() const { return scales.defined(); }
};

/// New rows of several heads, [k, rows, d]; the d elements of a row are contiguous.
struct NewRows {
  const void* data;      // the first element; not owned
  at::ScalarType dtype;  // of the elements
  int64_t rows;          // of each head
  int64_t head;          // stride of heads, in elements
  int64_t row;           // stride of rows, in elements

  /// Views `heads` [k, rows, d].
  static NewRows of(const at::Tensor& heads);
};

/// Writes new rows from row `position` on. In int8, each row is rounded to multiples of its largest magnitude
/// / 127, which is an error of at most half of that; a row with NaN or Inf reads as NaN.
void store_rows_(const StoredHeads& to, int64_t position, const NewRows& from);
/// As above for `heads` [k, rows, d], on any device.
void store_rows_(const StoredHeads& to, int64_t position, const at::Tensor& heads);

/// Returns rows [0, count) in `dtype`, [k, count, d]: a view unless they are int8.
at::Tensor stored_rows(const StoredHeads& from, int64_t count, at::ScalarType dtype);

}  // namespace shardwise::kernels
