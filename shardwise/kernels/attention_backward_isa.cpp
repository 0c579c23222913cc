#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/dropout_words.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <class A>
struct BackwardScratch {
  Scratch<A> scratch;
  MatrixView<A> k, k_transposed, v, dk, dv;                                            // per KV head
  MatrixView<A> q, q_transposed, d_out, d_out_transposed, dq_transposed, lse, d_sums;  // per query head
  MatrixView<A> p, ds;  // per block of keys, [keys, queries]
  MatrixView<A>
      kept;  // dropout mask of a block of 64 keys: one bit per key, as two words per query [2, queries]
  BackwardScratch(A* memory, AttentionExtent extent)
      : scratch(memory),
        k(scratch.matrix(extent.s, extent.d)),
        k_transposed(scratch.matrix(extent.d, extent.s)),
        v(scratch.matrix(extent.s, extent.d)),
        dk(scratch.matrix(extent.s, extent.d)),
        dv(scratch.matrix(extent.s, extent.d)),
        q(scratch.matrix(extent.s, extent.d)),
        q_transposed(scratch.matrix(extent.d, extent.s)),
        d_out(scratch.matrix(extent.s, extent.d)),
        d_out_transposed(scratch.matrix(extent.d, extent.s)),
        dq_transposed(scratch.matrix(extent.d, extent.s)),
        lse(scratch.matrix(1, extent.s)),
        d_sums(scratch.matrix(1, extent.s)),
        p(scratch.matrix(kBlock, extent.s)),
        ds(scratch.matrix(kBlock, extent.s)),
        kept(scratch.matrix(extent.mask.draws.threshold > 0 ? kBlock / kDropoutGroup : 0, extent.s)) {}
};

template <class A>
struct QuerySums {
  const A *lse, *d_sums;
};

// Processes one key's row in place: p from scores to probabilities, ds from d p to d scores. Queries that are
// masked out are computed too, up to a multiple of the vector width, and then cleared.
template <class A>
void probabilities_row(A* __restrict p, A* __restrict ds, QuerySums<A> of, IndexRange attended,
                       int64_t queries, A scale) {
  const A* __restrict lse = of.lse, * __restrict d_sums = of.d_sums;
  for (int64_t j = attended.begin / kColumnUnit<A> * kColumnUnit<A>; j < padded<A>(attended.end); ++j) {
    p[j] = exp_of(scale * p[j] - lse[j]);
    ds[j] = scale * p[j] * (ds[j] - d_sums[j]);
  }
  for (int64_t j = 0; j < attended.begin; ++j) p[j] = ds[j] = 0;
  for (int64_t j = attended.end; j < padded<A>(queries); ++j) p[j] = ds[j] = 0;
}

// probabilities_row with dropout: zeroes probabilities whose bit in `kept` is clear and scales the others.
template <class A>
void dropped_row(A* __restrict p, A* __restrict ds, QuerySums<A> of, IndexRange attended, int64_t queries,
                 A scale, const uint32_t* __restrict kept, uint32_t bit, A kept_scale) {
  const A* __restrict lse = of.lse, * __restrict d_sums = of.d_sums;
  for (int64_t j = attended.begin; j < attended.end; ++j) {
    const A factor = kept[j] & bit ? kept_scale : 0;
    const A probability = exp_of(scale * p[j] - lse[j]);
    ds[j] = scale * probability * (factor * ds[j] - d_sums[j]);
    p[j] = factor * probability;
  }
  for (int64_t j = 0; j < attended.begin; ++j) p[j] = ds[j] = 0;
  for (int64_t j = attended.end; j < padded<A>(queries); ++j) p[j] = ds[j] = 0;
}

// Processes the rows of a block of keys, for the queries that attend to at least one of them.
template <class A>
void probabilities(const BackwardScratch<A>& use, IndexRange keys, IndexRange queries, uint64_t row,
                   const AttentionExtent& extent) {
  const bool drops = extent.mask.draws.threshold > 0;
  const A scale = static_cast<A>(extent.scale), kept_scale = static_cast<A>(extent.mask.scale);
  const IndexRange groups = {keys.begin / kDropoutGroup, (keys.end + kDropoutGroup - 1) / kDropoutGroup};
  if (drops) draw_kept(use.kept, groups, queries.size(), row, extent.mask);
  const QuerySums<A> of = {use.lse.data + queries.begin, use.d_sums.data + queries.begin};
  for (int64_t i = 0; i < keys.size(); ++i) {
    const IndexRange attended = extent.causal ? IndexRange{i, smaller(i + extent.window, queries.size())}
                                              : IndexRange{0, queries.size()};
    if (drops) {
      dropped_row(use.p.row(i), use.ds.row(i), of, attended, queries.size(), scale,
                  kept_words(use.kept, i / kDropoutGroup), 1u << i % kDropoutGroup, kept_scale);
    } else {
      probabilities_row(use.p.row(i), use.ds.row(i), of, attended, queries.size(), scale);
    }
  }
}

// Processes a block of keys with all queries that attend to any of them. `row` is the mask row of the head's
// first query.
template <class A>
void backward_block(const BackwardScratch<A>& use, IndexRange keys, uint64_t row,
                    const AttentionExtent& extent) {
  const int64_t s = extent.s, d = extent.d, d_columns = padded<A>(d);
  const IndexRange queries =
      extent.causal ? IndexRange{keys.begin, smaller(s, keys.end - 1 + extent.window)} : IndexRange{0, s};
  const int64_t columns = padded<A>(queries.size());
  multiply<false>(use.p, read(use.k.from(keys.begin)), read(use.q_transposed.from(0, queries.begin)),
                  keys.size(), columns, d);
  multiply<false>(use.ds, read(use.v.from(keys.begin)), read(use.d_out_transposed.from(0, queries.begin)),
                  keys.size(), columns, d);
  probabilities(use, keys, queries, row + queries.begin, extent);
  multiply<true>(use.dv.from(keys.begin), read(use.p), read(use.d_out.from(queries.begin)), keys.size(),
                 d_columns, queries.size());
  multiply<true>(use.dk.from(keys.begin), read(use.ds), read(use.q.from(queries.begin)), keys.size(),
                 d_columns, queries.size());
  multiply<true>(use.dq_transposed.from(0, queries.begin), read(use.k_transposed.from(0, keys.begin)),
                 read(use.ds), d, columns, keys.size());
}

template <class T, class A>
void load_head(const BackwardScratch<A>& use, HeadRows<const T> d_out,
               const typename AttentionBackwardLoops<T>::Saved& saved, int64_t head, AttentionExtent extent) {
  const T* q = saved.q.data + head * saved.q.head;
  const T* d_rows = d_out.data + head * d_out.head;
  const T* out = saved.out.data + head * saved.out.head;
  widen_rows(use.q, q, saved.q.row, extent.s, extent.d);
  transpose_rows(use.q_transposed, q, saved.q.row, extent.s, extent.d);
  widen_rows(use.d_out, d_rows, d_out.row, extent.s, extent.d);
  transpose_rows(use.d_out_transposed, d_rows, d_out.row, extent.s, extent.d);
  zero(use.dq_transposed, extent.d);
  zero(use.d_sums, 1);
  widen_rows(use.lse, saved.lse + head * extent.head_rows, 0, 1, extent.s);
  for (int64_t i = 0; i < extent.s; ++i) {
    const T* out_row = out + i * saved.out.row;
    const A* d_row = use.d_out.row(i);
    use.d_sums.data[i] = sum_of<A>(extent.d, [=](int64_t j) { return widen(out_row[j]) * d_row[j]; });
  }
}

template <class T, class A>
void store_transposed(HeadRows<T> to, int64_t head, MatrixView<A> from, int64_t s, int64_t d) {
  for (int64_t i = 0; i < s; ++i) {
    T* __restrict row = to.data + head * to.head + i * to.row;
    for (int64_t j = 0; j < d; ++j) row[j] = narrow<T>(from.row(j)[i]);
  }
}

template <class T>
void backward(typename AttentionBackwardLoops<T>::Gradients gradients, HeadRows<const T> d_out,
              typename AttentionBackwardLoops<T>::Saved saved, Accumulator<T>* memory,
              AttentionExtent extent) {
  using A = Accumulator<T>;
  const int64_t s = extent.s, d = extent.d;
  const BackwardScratch<A> use(memory, extent);
  widen_rows(use.k, saved.k.data, saved.k.row, s, d);
  transpose_rows(use.k_transposed, saved.k.data, saved.k.row, s, d);
  widen_rows(use.v, saved.v.data, saved.v.row, s, d);
  zero(use.dk, s);
  zero(use.dv, s);
  for (int64_t head = 0; head < extent.heads; ++head) {
    load_head<T>(use, d_out, saved, head, extent);
    const uint64_t row = extent.mask.first_row + head * extent.head_rows;
    for (int64_t key = 0; key < s; key += kBlock)
      backward_block(use, {key, smaller(key + kBlock, s)}, row, extent);
    store_transposed(gradients.q, head, use.dq_transposed, s, d);
  }
  for (int64_t i = 0; i < s; ++i) {
    narrow_row(gradients.k.data + i * gradients.k.row, use.dk.row(i), A{1}, d);
    narrow_row(gradients.v.data + i * gradients.v.row, use.dv.row(i), A{1}, d);
  }
}

template <class T>
int64_t scratch_of(AttentionExtent extent) {
  return BackwardScratch<Accumulator<T>>(nullptr, extent).scratch.used();
}

}  // namespace

template <class T>
AttentionBackwardLoops<T> attention_backward_loops() {
  return {scratch_of<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(AttentionBackwardLoops, attention_backward_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
