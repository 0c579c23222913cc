#include "shardwise/kernels/attention_blocks.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class A>
struct SingleScratch {
  Scratch<A> scratch;
  MatrixView<A> q, scores, out;
  SingleScratch(A* memory, AttentionExtent extent)
      : scratch(memory),
        q(scratch.matrix(1, extent.d)),
        scores(scratch.matrix(1, keys_of(extent))),
        out(scratch.matrix(1, extent.d)) {}
};

template <class T, class A>
void add_scaled(A* __restrict sum, const T* __restrict row, A factor, int64_t d) {
  for (int64_t i = 0; i < d; ++i) sum[i] += factor * widen(row[i]);
}

template <class T>
void forward(T* out, Accumulator<T>* lse, const T* query, HeadRows<const T> k, HeadRows<const T> v,
             Accumulator<T>* memory, AttentionExtent extent) {
  using A = Accumulator<T>;
  const SingleScratch<A> use(memory, extent);
  const int64_t d = extent.d;
  const IndexRange attended = attended_keys(/*query=*/0, extent);
  widen_rows(use.q, query, /*from_stride=*/0, /*rows=*/1, d);
  const A* __restrict q = use.q.data;
  for (int64_t j = 0; j < attended.size(); ++j) {
    const T* __restrict key = k.data + (attended.begin + j) * k.row;
    use.scores.data[j] = sum_of<A>(d, [=](int64_t i) { return q[i] * widen(key[i]); });
  }
  const RowSums<A> sums =
      exp_row(use.scores.data, {0, attended.size()}, attended.size(), static_cast<A>(extent.scale));
  for (int64_t i = 0; i < d; ++i) use.out.data[i] = 0;
  for (int64_t j = 0; j < attended.size(); ++j)
    add_scaled(use.out.data, v.data + (attended.begin + j) * v.row, use.scores.data[j], d);
  narrow_row(out, use.out.data, A{1} / sums.sum, d);
  *lse = sums.lse;
}

template <class T>
int64_t scratch_of(AttentionExtent extent) {
  return SingleScratch<Accumulator<T>>(nullptr, extent).scratch.used();
}

}  // namespace

template <class T>
AttentionSingleLoops<T> attention_single_loops() {
  return {scratch_of<T>, forward<T>};
}
SHARDWISE_INSTANTIATE(AttentionSingleLoops, attention_single_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
