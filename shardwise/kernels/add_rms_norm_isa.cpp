// Rounds where the unfused ops do: after the sum of the partials, after adding the bias, after adding x. The
// norm shares its code with rms_norm_isa.cpp and reads a row that is still in the cache.
#include "shardwise/kernels/add_rms_norm_isa.h"

#include "shardwise/kernels/rms_row.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlock = 512;

/// residual[i] = x[i] + (sum(i) + bias[i]), i < n.
template <class T, class Sum>
void add(T* __restrict residual, const T* __restrict x, const T* __restrict bias, int64_t n, Sum sum) {
  if (bias == nullptr) {
    for (int64_t i = 0; i < n; ++i) residual[i] = narrow<T>(widen(x[i]) + widen(narrow<T>(sum(i))));
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const T y = narrow<T>(widen(narrow<T>(sum(i))) + widen(bias[i]));
      residual[i] = narrow<T>(widen(x[i]) + widen(y));
    }
  }
}

/// Sums n elements of the partials, from `begin` on, in rank order.
template <class T>
void sum_partials(Accumulator<T>* __restrict sum, const T* const* partials, int count, int64_t begin,
                  int64_t n) {
  const T *first = partials[0] + begin, *second = partials[1] + begin;
  for (int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]) + widen(second[i]);
  for (int rank = 2; rank < count; ++rank) {
    const T* next = partials[rank] + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] += widen(next[i]);
  }
}

/// Computes one row of the residual, which begins at element `begin` of every tensor.
template <class T>
void add_row(const AddRmsNormRows<T>& rows, int64_t begin) {
  const T *first = rows.partials[0] + begin, *x = rows.x + begin;
  T* residual = rows.residual + begin;
  if (rows.count == 1) {
    add(residual, x, rows.bias, rows.h, [first](int64_t i) { return widen(first[i]); });
  } else if (rows.count == 2) {
    const T* second = rows.partials[1] + begin;
    add(residual, x, rows.bias, rows.h, [=](int64_t i) { return widen(first[i]) + widen(second[i]); });
  } else {
    alignas(64) Accumulator<T> sum[kBlock];
    for (int64_t i = 0; i < rows.h; i += kBlock) {
      const int64_t n = rows.h - i < kBlock ? rows.h - i : kBlock;
      sum_partials(sum, rows.partials, rows.count, begin + i, n);
      add(residual + i, x + i, rows.bias ? rows.bias + i : nullptr, n, [&](int64_t at) { return sum[at]; });
    }
  }
}

template <class T>
void forward(const AddRmsNormRows<T>& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * rows.h;
    add_row(rows, at);
    normalize_row(rows.norm + at, rows.residual + at, rows.weight,
                  inverse_rms(rows.residual + at, rows.eps, rows.h), rows.h);
  }
}

}  // namespace

template <class T>
AddRmsNormLoops<T> add_rms_norm_loops() {
  return {forward<T>};
}
SHARDWISE_INSTANTIATE(AddRmsNormLoops, add_rms_norm_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
