// Rounds where the separate ops do: the sum of the terms, the sum with the bias, the sum with x. The norm is
// that of rms_norm_isa.cpp, of a row that has just been written.
#include "shardwise/kernels/add_rms_norm_isa.h"

#include "shardwise/kernels/rms_row.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlock = 512;

/// stream[i] = x[i] + (sum(i) + bias[i]), i < n.
template <class T, class Sum>
void add(T* __restrict stream, const T* __restrict x, const T* __restrict bias, int64_t n, Sum sum) {
  if (bias == nullptr) {
    for (int64_t i = 0; i < n; ++i) stream[i] = narrow<T>(widen(x[i]) + widen(narrow<T>(sum(i))));
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const T y = narrow<T>(widen(narrow<T>(sum(i))) + widen(bias[i]));
      stream[i] = narrow<T>(widen(x[i]) + widen(y));
    }
  }
}

/// The terms' elements from `begin` on, added in the order of the ranks.
template <class T>
void add_up(Accumulator<T>* __restrict sum, const T* const* terms, int count, int64_t begin, int64_t n) {
  const T *first = terms[0] + begin, *second = terms[1] + begin;
  for (int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]) + widen(second[i]);
  for (int term = 2; term < count; ++term) {
    const T* next = terms[term] + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] += widen(next[i]);
  }
}

/// One row, whose first element is the `begin`th of all tensors.
template <class T>
void add_row(const AddRmsNormRows<T>& rows, int64_t begin) {
  const T *first = rows.terms[0] + begin, *x = rows.x + begin;
  T* stream = rows.stream + begin;
  if (rows.count == 1) {
    add(stream, x, rows.bias, rows.h, [first](int64_t i) { return widen(first[i]); });
  } else if (rows.count == 2) {
    const T* second = rows.terms[1] + begin;
    add(stream, x, rows.bias, rows.h, [=](int64_t i) { return widen(first[i]) + widen(second[i]); });
  } else {
    alignas(64) Accumulator<T> sum[kBlock];
    for (int64_t i = 0; i < rows.h; i += kBlock) {
      const int64_t n = rows.h - i < kBlock ? rows.h - i : kBlock;
      add_up(sum, rows.terms, rows.count, begin + i, n);
      add(stream + i, x + i, rows.bias ? rows.bias + i : nullptr, n, [&](int64_t at) { return sum[at]; });
    }
  }
}

template <class T>
void forward(const AddRmsNormRows<T>& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * rows.h;
    add_row(rows, at);
    normalize_row(rows.norm + at, rows.stream + at, rows.weight,
                  inverse_rms(rows.stream + at, rows.eps, rows.h), rows.h);
  }
}

}  // namespace

template <class T>
AddRmsNormLoops<T> add_rms_norm_loops() {
  return {forward<T>};
}
SHARDWISE_INSTANTIATE(AddRmsNormLoops, add_rms_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
