// Building blocks of attention's forward and backward: rows of heads as padded matrices in the accumulator's
// type. Only for `*_isa.cpp`, see loops.h.
#pragma once
#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/dropout_words.h"
#include "shardwise/kernels/small_product.h"

namespace shardwise::kernels::SHARDWISE_ISA {

constexpr int64_t kBlock = 64;

// Allocates padded matrices from one buffer, or only measures the size if the buffer is null. Strides are an
// odd number of cache lines, so that the elements of a column do not map to the same few cache sets.
template <class A>
class Scratch {
 public:
  explicit Scratch(A* memory) : memory_(memory) {}
  MatrixView<A> matrix(int64_t rows, int64_t columns) {
    const int64_t lines = padded<A>(columns) / kColumnUnit<A> | 1;
    const MatrixView<A> result = {memory_ ? memory_ + used_ : nullptr, lines * kColumnUnit<A>};
    used_ += rows * result.stride;
    return result;
  }
  int64_t used() const { return used_; }

 private:
  A* memory_;
  int64_t used_ = 0;
};

template <class A>
MatrixView<const A> read(MatrixView<A> matrix) {
  return {matrix.data, matrix.stride};
}

// Widens rows into `to` [rows, padded(d)], zero beyond d.
template <class T, class A>
void widen_rows(MatrixView<A> to, const T* from, int64_t from_stride, int64_t rows, int64_t d) {
  for (int64_t i = 0; i < rows; ++i) {
    A* __restrict to_row = to.row(i);
    const T* __restrict from_row = from + i * from_stride;
    for (int64_t j = 0; j < d; ++j) to_row[j] = widen(from_row[j]);
    for (int64_t j = d; j < padded<A>(d); ++j) to_row[j] = 0;
  }
}

// Transposes rows into `to` [d, padded(rows)], zero beyond rows, one cache line of `to` at a time.
template <class T, class A>
void transpose_rows(MatrixView<A> to, const T* from, int64_t from_stride, int64_t rows, int64_t d) {
  constexpr int64_t unit = kColumnUnit<A>;
  for (int64_t i = 0; i < rows; i += unit) {
    const int64_t count = rows - i < unit ? rows - i : unit;
    for (int64_t j = 0; j < d; ++j) {
      A* __restrict line = to.row(j) + i;
      const T* __restrict column = from + i * from_stride + j;
      if (count == unit) {
        for (int64_t l = 0; l < unit; ++l) line[l] = widen(column[l * from_stride]);
      } else {
        for (int64_t l = 0; l < unit; ++l) line[l] = l < count ? widen(column[l * from_stride]) : 0;
      }
    }
  }
}

template <class T, class A>
void narrow_row(T* __restrict to, const A* __restrict from, A scale, int64_t d) {
  for (int64_t j = 0; j < d; ++j) to[j] = narrow<T>(from[j] * scale);
}

// A half-open range.
struct IndexRange {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t larger(int64_t a, int64_t b) {
  return a < b ? b : a;
}

inline int64_t keys_of(const AttentionExtent& extent) {
  return extent.past + extent.s;
}

inline IndexRange attended_keys(int64_t query, const AttentionExtent& extent) {
  if (!extent.causal) return {0, keys_of(extent)};
  const int64_t end = extent.past + query + 1;
  return {larger(0, end - extent.window), end};
}

template <class A>
struct RowSums {
  A largest, sum;  // the largest score, and Σ e^(score − largest)
};

// Converts scores to unnormalized probabilities, zero for masked keys. Computes full vectors throughout: rows
// have any length, and a scalar loop over the remainder would take longer than the vectors.
template <class A>
inline RowSums<A> exp_row(A* __restrict scores, IndexRange attended, int64_t keys, A scale) {
  for (int64_t j = 0; j < attended.begin; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = attended.end; j < padded<A>(keys); ++j) scores[j] = -__builtin_inff();
  const A largest = scale * max_of<A>(padded<A>(keys), [=](int64_t j) { return scores[j]; });
  for (int64_t j = 0; j < padded<A>(keys); ++j) scores[j] = exp_of(scale * scores[j] - largest);
  const A sum = sum_of<A>(padded<A>(keys), [=](int64_t j) { return scores[j]; });
  return {largest, sum};
}

// Applies the dropout mask to one query's probabilities, which begin at key `first_key`.
template <class A>
inline void drop_row(A* __restrict p, int64_t first_key, int64_t keys, uint64_t row,
                     const ProbabilityMask& mask) {
  alignas(64) uint32_t words[kDrawnGroups * kDropoutGroup];
  for (int64_t j = 0; j < keys; j += kDrawnGroups * kDropoutGroup) {
    const int64_t count = smaller(padded<A>(keys) - j, kDrawnGroups * kDropoutGroup);
    const uint64_t group = row * mask.row_groups + (first_key + j) / kDropoutGroup;
    draw_words(words, mask.draws.key, group, (count + kDropoutGroup - 1) / kDropoutGroup);
    for (int64_t l = 0; l < count; ++l) p[j + l] = words[l] >= mask.draws.threshold ? p[j + l] : 0;
  }
}

/// Returns the words of a row of draw_kept, which are stored in a row of accumulators.
template <class A>
uint32_t* kept_words(MatrixView<A> kept, int64_t group) {
  return reinterpret_cast<uint32_t*>(kept.row(group));
}

/// Draws which probabilities are kept: row g of `kept` gets, for each query, a bit for each of the 32 keys of
/// the g-th of `groups`. `first_row` is the mask's row of the first query.
template <class A>
void draw_kept(MatrixView<A> kept, IndexRange groups, int64_t queries, uint64_t first_row,
               const ProbabilityMask& mask) {
  alignas(64) uint32_t words[kDrawnGroups * kDropoutGroup] = {};
  for (int64_t query = 0; query < queries; ++query) {
    const uint64_t first_group = (first_row + query) * mask.row_groups + groups.begin;
    for (int64_t g = 0; g < groups.size(); ++g) {
      if (g % kDrawnGroups == 0)
        draw_words(words, mask.draws.key, first_group + g, smaller(kDrawnGroups, groups.size() - g));
      const uint32_t* drawn = words + g % kDrawnGroups * kDropoutGroup;
      uint32_t bits = 0;
      for (int64_t l = 0; l < kDropoutGroup; ++l) bits |= uint32_t{drawn[l] >= mask.draws.threshold} << l;
      kept_words(kept, g)[query] = bits;
    }
  }
}

template <class A>
void zero(MatrixView<A> matrix, int64_t rows) {
  __builtin_memset(matrix.data, 0, rows * matrix.stride * sizeof(A));
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
