#include "shardwise/kernels/cross_entropy_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class T>
Accumulator<T> row_max(const T* logits, int64_t v) {
  return max_of<Accumulator<T>>(v, [logits](int64_t i) { return widen(logits[i]); });
}

template <class T>
Accumulator<T> sum_exp(const T* logits, Accumulator<T> origin, int64_t v) {
  return sum_of<Accumulator<T>>(v, [=](int64_t i) { return exp_of(widen(logits[i]) - origin); });
}

template <class T>
Accumulator<T> sum_shifted(const T* logits, Accumulator<T> origin, int64_t v) {
  return sum_of<Accumulator<T>>(v, [=](int64_t i) { return widen(logits[i]) - origin; });
}

template <class T>
void backward_row(T* logits, Accumulator<T> lse, RowGradient<Accumulator<T>> row, int64_t target, int64_t v) {
  const auto of_class = [=](int64_t i) {
    return exp_of(widen(logits[i]) - lse) * row.probability - row.each_class;
  };
  const T of_target = target >= 0 ? narrow<T>((of_class(target) - row.label) * row.scale) : T{};
  for (int64_t i = 0; i < v; ++i) logits[i] = narrow<T>(of_class(i) * row.scale);
  if (target >= 0) logits[target] = of_target;
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
