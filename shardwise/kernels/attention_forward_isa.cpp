#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/attention_isa.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class A>
struct ForwardScratch {
  Scratch<A> scratch;
  MatrixView<A> k_transposed, v, q, scores, out;
  ForwardScratch(A* memory, AttentionExtent extent)
      : scratch(memory),
        k_transposed(scratch.matrix(extent.d, keys_of(extent))),
        v(scratch.matrix(keys_of(extent), extent.d)),
        q(scratch.matrix(kBlock, extent.d)),
        scores(scratch.matrix(kBlock, keys_of(extent))),
        out(scratch.matrix(kBlock, extent.d)) {}
};

// Processes a block of queries with all keys that any of them attends to. The first key is rounded down to a
// group of dropout draws.
template <class T, class A>
void forward_block(const ForwardScratch<A>& use, IndexRange queries, HeadRows<T> out, A* lse, uint64_t row,
                   const AttentionExtent& extent) {
  const int64_t rows = queries.size(), d = extent.d;
  const int64_t first_key = attended_keys(queries.begin, extent).begin / kDropoutGroup * kDropoutGroup;
  const int64_t keys = attended_keys(queries.end - 1, extent).end - first_key;
  const bool drops = extent.mask.draws.threshold > 0;
  multiply</*adds=*/false>(use.scores, read(use.q), read(use.k_transposed.from(0, first_key)), rows,
                           padded<A>(keys), d);
  A inverse[kBlock];
  for (int64_t i = 0; i < rows; ++i) {
    const IndexRange attended = attended_keys(queries.begin + i, extent);
    const RowSums<A> sums = exp_row(use.scores.row(i), {attended.begin - first_key, attended.end - first_key},
                                    keys, static_cast<A>(extent.scale));
    if (drops) drop_row(use.scores.row(i), first_key, keys, row + i, extent.mask);
    inverse[i] = (drops ? static_cast<A>(extent.mask.scale) : A{1}) / sums.sum;
    lse[i] = sums.largest + log_of(sums.sum);
  }
  multiply</*adds=*/false>(use.out, read(use.scores), read(use.v.from(first_key)), rows, padded<A>(d), keys);
  for (int64_t i = 0; i < rows; ++i) narrow_row(out.data + i * out.row, use.out.row(i), inverse[i], d);
}

template <class T>
void forward(HeadRows<T> out, Accumulator<T>* lse, HeadRows<const T> q, HeadRows<const T> k,
             HeadRows<const T> v, Accumulator<T>* memory, AttentionExtent extent) {
  const int64_t s = extent.s, d = extent.d;
  const ForwardScratch<Accumulator<T>> use(memory, extent);
  transpose_rows(use.k_transposed, k.data, k.row, keys_of(extent), d);
  widen_rows(use.v, v.data, v.row, keys_of(extent), d);
  for (int64_t head = 0; head < extent.heads; ++head) {
    for (int64_t first = 0; first < s; first += kBlock) {
      const IndexRange queries = {first, smaller(first + kBlock, s)};
      const int64_t row = head * extent.head_rows + first;
      widen_rows(use.q, q.data + head * q.head + first * q.row, q.row, queries.size(), d);
      forward_block(use, queries,
                    HeadRows<T>{out.data + head * out.head + first * out.row, out.head, out.row}, lse + row,
                    extent.mask.first_row + row, extent);
    }
  }
}

template <class T>
int64_t scratch_of(AttentionExtent extent) {
  return ForwardScratch<Accumulator<T>>(nullptr, extent).scratch.used();
}

}  // namespace

template <class T>
AttentionForwardLoops<T> attention_forward_loops() {
  return {scratch_of<T>, forward<T>};
}
SHARDWISE_INSTANTIATE(AttentionForwardLoops, attention_forward_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
