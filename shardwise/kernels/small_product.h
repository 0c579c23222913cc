// Products of matrices that fit the cache, such as attention's blocks. Only for `*_isa.cpp`, see loops.h.
//
// A tile of c, a few rows by two vectors, is accumulated in registers: each step multiplies a vector of a row
// of b by an element of a column of a. Nothing is packed.
#pragma once
#include <cstdint>

#include "shardwise/kernels/vectors.h"

namespace shardwise::kernels::SHARDWISE_ISA {

constexpr int kTileRows = kVectorBytes == 64 ? 8 : 4;

/// Columns are padded to cache lines on every instruction set: `n` is a multiple of this.
template <class A>
inline constexpr int64_t kColumnUnit = 64 / sizeof(A);

template <class A>
constexpr int64_t padded(int64_t columns) {
  return (columns + kColumnUnit<A> - 1) / kColumnUnit<A> * kColumnUnit<A>;
}

/// A strided view of rows whose elements are contiguous.
template <class A>
struct MatrixView {
  A* data;
  int64_t stride;
  A* row(int64_t i) const { return data + i * stride; }
  MatrixView from(int64_t i, int64_t j = 0) const { return {data + i * stride + j, stride}; }
};

// All loops except the one over t are unrolled, so that `sum` stays in registers.
template <int rows, int vectors, bool adds, class A>
inline void multiply_tile(MatrixView<A> c, MatrixView<const A> a, MatrixView<const A> b, int64_t k) {
  Vector<A> sum[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      sum[i][j] = adds ? *reinterpret_cast<const Vector<A>*>(c.row(i) + j * kVectorLanes<A>) : Vector<A>{};
    }
  }
  for (int64_t t = 0; t < k; ++t) {
    const Vector<A>* b_row = reinterpret_cast<const Vector<A>*>(b.row(t));
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sum[i][j] += a.row(i)[t] * b_row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j)
      *reinterpret_cast<Vector<A>*>(c.row(i) + j * kVectorLanes<A>) = sum[i][j];
  }
}

template <int vectors, bool adds, int rows, class A>
inline void multiply_last_rows(MatrixView<A> c, MatrixView<const A> a, MatrixView<const A> b, int64_t m,
                               int64_t k) {
  if (m == rows) return multiply_tile<rows, vectors, adds>(c, a, b, k);
  if constexpr (rows > 1) multiply_last_rows<vectors, adds, rows - 1>(c, a, b, m, k);
}

template <int vectors, bool adds, class A>
void multiply_columns(MatrixView<A> c, MatrixView<const A> a, MatrixView<const A> b, int64_t m, int64_t k) {
  int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows) {
    multiply_tile<kTileRows, vectors, adds>(c.from(i), a.from(i), b, k);
  }
  if (i < m) multiply_last_rows<vectors, adds, kTileRows - 1>(c.from(i), a.from(i), b, m - i, k);
}

/// Computes c [m, n] = a [m, k] · b [k, n], or += with `adds`. n is a multiple of kColumnUnit.
template <bool adds, class A>
void multiply(MatrixView<A> c, MatrixView<const A> a, MatrixView<const A> b, int64_t m, int64_t n,
              int64_t k) {
  int64_t j = 0;
  for (; j + 2 * kVectorLanes<A> <= n; j += 2 * kVectorLanes<A>)
    multiply_columns<2, adds>(c.from(0, j), a, b.from(0, j), m, k);
  if (j < n) multiply_columns<1, adds>(c.from(0, j), a, b.from(0, j), m, k);
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
