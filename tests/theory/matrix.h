// Matrices as plain loops over indices, without ATen, for the tests of docs/theory.md.
//
// Every entry is a small integer, so that sums are exact in any order and the tests compare with ==.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::testing::theory {

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> entries;

  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count), columns(column_count), entries(row_count * column_count) {}
  double& operator()(int64_t i, int64_t j) { return entries[i * columns + j]; }
  double operator()(int64_t i, int64_t j) const { return entries[i * columns + j]; }
  bool operator==(const Matrix&) const = default;
};

/// Builds a matrix from a function of the indices.
inline Matrix matrix(int64_t rows, int64_t columns, const std::function<double(int64_t, int64_t)>& entry) {
  Matrix m(rows, columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) m(i, j) = entry(i, j);
  }
  return m;
}

/// Returns a matrix of irregular integers from −4 to 4.
inline Matrix sample(int64_t rows, int64_t columns, int64_t seed) {
  return matrix(rows, columns, [seed](int64_t i, int64_t j) {
    return static_cast<double>((7 * i * i + 5 * i * j + 3 * j + 11 * seed + j * j * seed) % 9 - 4);
  });
}

/// (AB)ᵢₖ = Σⱼ Aᵢⱼ Bⱼₖ
inline Matrix operator*(const Matrix& a, const Matrix& b) {
  return matrix(a.rows, b.columns, [&](int64_t i, int64_t k) {
    double sum = 0;
    for (int64_t j = 0; j < a.columns; ++j) sum += a(i, j) * b(j, k);
    return sum;
  });
}

inline Matrix operator+(const Matrix& a, const Matrix& b) {
  return matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return a(i, j) + b(i, j); });
}

/// (A ∘ B)ᵢⱼ = Aᵢⱼ Bᵢⱼ
inline Matrix times_each(const Matrix& a, const Matrix& b) {
  return matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return a(i, j) * b(i, j); });
}

inline Matrix transposed(const Matrix& a) {
  return matrix(a.columns, a.rows, [&](int64_t i, int64_t j) { return a(j, i); });
}

inline Matrix apply(const std::function<double(double)>& f, const Matrix& a) {
  return matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return f(a(i, j)); });
}

inline Matrix columns_of(const Matrix& a, base::Range range) {
  return matrix(a.rows, range.size(), [&](int64_t i, int64_t j) { return a(i, range.begin + j); });
}

inline Matrix rows_of(const Matrix& a, base::Range range) {
  return matrix(range.size(), a.columns, [&](int64_t i, int64_t j) { return a(range.begin + i, j); });
}

/// Adds `row` to every row, like a bias.
inline Matrix plus_row(const Matrix& a, const Matrix& row) {
  return matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return a(i, j) + row(0, j); });
}

/// Returns Σᵢ Aᵢⱼ as one row, like a bias's gradient.
inline Matrix column_sums(const Matrix& a) {
  return matrix(1, a.columns, [&](int64_t, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < a.rows; ++i) sum += a(i, j);
    return sum;
  });
}

/// Σᵢⱼ Aᵢⱼ Bᵢⱼ
inline double dot(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) sum += a(i, j) * b(i, j);
  }
  return sum;
}

/// Concatenates the ranks' shards along the columns.
inline Matrix concatenated(const std::vector<Matrix>& shards) {
  Matrix result(shards[0].rows, 0);
  for (const Matrix& shard : shards) {
    const Matrix left = result;
    result = matrix(left.rows, left.columns + shard.columns, [&](int64_t i, int64_t j) {
      return j < left.columns ? left(i, j) : shard(i, j - left.columns);
    });
  }
  return result;
}

/// Returns the sum over the ranks, the result of an all_reduce.
inline Matrix summed(const std::vector<Matrix>& terms) {
  Matrix sum(terms[0].rows, terms[0].columns);
  for (const Matrix& term : terms) sum = sum + term;
  return sum;
}

/// Returns ∂f/∂Aᵢⱼ by central differences, which are exact if f is quadratic in each entry of A. So the tests
/// assume no differentiation rules.
inline Matrix difference_quotient(const std::function<double(const Matrix&)>& f, const Matrix& at) {
  return matrix(at.rows, at.columns, [&](int64_t i, int64_t j) {
    Matrix above = at, below = at;
    above(i, j) += 1, below(i, j) -= 1;
    return (f(above) - f(below)) / 2;
  });
}

}  // namespace shardwise::testing::theory
