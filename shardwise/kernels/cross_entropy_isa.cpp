#include "shardwise/kernels/cross_entropy_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
void row_max(Accumulator<T>* max, const T* logits, int64_t rows, int64_t v) {
  for (int64_t row = 0; row < rows; ++row, logits += v) {
    max[row] = max_of<Accumulator<T>>(v, [logits](int64_t i) { return widen(logits[i]); });
  }
}

template <class T>
void sum_exp(Accumulator<T>* sum, const T* logits, const Accumulator<T>* max, int64_t rows, int64_t v) {
  for (int64_t row = 0; row < rows; ++row, logits += v) {
    const Accumulator<T> largest = max[row];
    sum[row] = sum_of<Accumulator<T>>(v, [=](int64_t i) { return exp_of(widen(logits[i]) - largest); });
  }
}

template <class T>
void sum_shifted(Accumulator<T>* sum, const T* logits, const Accumulator<T>* max, int64_t rows, int64_t v) {
  for (int64_t row = 0; row < rows; ++row, logits += v) {
    const Accumulator<T> largest = max[row];
    sum[row] = sum_of<Accumulator<T>>(v, [=](int64_t i) { return widen(logits[i]) - largest; });
  }
}

template <class T>
void backward_row(T* __restrict d, const T* __restrict logits, Accumulator<T> lse,
                  RowGradient<Accumulator<T>> row, int64_t target, int64_t v) {
  const auto of_class = [=](int64_t i) {
    return exp_of(widen(logits[i]) - lse) * row.probability - row.each_class;
  };
  for (int64_t i = 0; i < v; ++i) d[i] = narrow<T>(of_class(i) * row.scale);
  if (target >= 0) d[target] = narrow<T>((of_class(target) - row.label) * row.scale);
}

template <class T>
Accumulator<T> load(const T* logit) {
  return widen(*logit);
}

}  // namespace

template <class T>
CrossEntropyLoops<T> cross_entropy_loops() {
  return {row_max<T>, sum_exp<T>, sum_shifted<T>, backward_row<T>, load<T>};
}
SHARDWISE_INSTANTIATE(CrossEntropyLoops, cross_entropy_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
