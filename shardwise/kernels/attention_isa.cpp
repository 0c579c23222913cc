#include "shardwise/kernels/attention_isa.h"

#include "shardwise/kernels/small_product.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlock = 64;

// Hands out padded matrices from one piece of memory, or only counts when there is none. Strides are an odd
// number of cache lines, so that the rows of a column do not fall on the same few lines of the cache.
template <class A>
class Scratch {
 public:
  explicit Scratch(A* memory) : memory_(memory) {}
  Matrix<A> matrix(int64_t rows, int64_t columns) {
    const int64_t lines = padded<A>(columns) / kColumnUnit<A> | 1;
    const Matrix<A> result = {memory_ ? memory_ + used_ : nullptr, lines * kColumnUnit<A>};
    used_ += rows * result.stride;
    return result;
  }
  int64_t used() const { return used_; }

 private:
  A* memory_;
  int64_t used_ = 0;
};

template <class A>
Matrix<const A> read(Matrix<A> matrix) {
  return {matrix.data, matrix.stride};
}

// to [rows, padded(d)], zero beyond d.
template <class T, class A>
void widen_rows(Matrix<A> to, const T* from, int64_t from_stride, int64_t rows, int64_t d) {
  for (int64_t i = 0; i < rows; ++i) {
    A* __restrict to_row = to.row(i);
    const T* __restrict from_row = from + i * from_stride;
    for (int64_t j = 0; j < d; ++j) to_row[j] = widen(from_row[j]);
    for (int64_t j = d; j < padded<A>(d); ++j) to_row[j] = 0;
  }
}

// to [d, padded(rows)], zero beyond rows. A cache line of `to` at a time.
template <class T, class A>
void transpose_rows(Matrix<A> to, const T* from, int64_t from_stride, int64_t rows, int64_t d) {
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

// ---- forward

template <class A>
struct RowSums {
  A sum, lse;
};

// Scores to probabilities that still lack the division by their sum; zero after the first `seen` keys. Whole
// vectors throughout: rows end anywhere, and the few elements left over would take longer than all others.
template <class A>
RowSums<A> exp_row(A* __restrict scores, int64_t seen, int64_t keys, A scale) {
  for (int64_t j = seen; j < padded<A>(keys); ++j) scores[j] = -__builtin_inff();
  const A largest = scale * max_of<A>(padded<A>(keys), [=](int64_t j) { return scores[j]; });
  for (int64_t j = 0; j < padded<A>(keys); ++j) scores[j] = exp_of(scale * scores[j] - largest);
  const A sum = sum_of<A>(padded<A>(keys), [=](int64_t j) { return scores[j]; });
  return {sum, largest + log_of(sum)};
}

template <class A>
struct ForwardScratch {
  Scratch<A> scratch;
  Matrix<A> k_transposed, v, q, scores, out;
  ForwardScratch(A* memory, AttentionExtent extent)
      : scratch(memory),
        k_transposed(scratch.matrix(extent.d, extent.s)),
        v(scratch.matrix(extent.s, extent.d)),
        q(scratch.matrix(kBlock, extent.d)),
        scores(scratch.matrix(kBlock, extent.s)),
        out(scratch.matrix(kBlock, extent.d)) {}
};

template <class T>
void forward(HeadRows<T> out, Accumulator<T>* lse, HeadRows<const T> q, HeadRows<const T> k,
             HeadRows<const T> v, Accumulator<T>* memory, AttentionExtent extent) {
  using A = Accumulator<T>;
  const auto [heads, s, d, scale, causal] = extent;
  const ForwardScratch<A> use(memory, extent);
  transpose_rows(use.k_transposed, k.data, k.row, s, d);
  widen_rows(use.v, v.data, v.row, s, d);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t first = 0; first < s; first += kBlock) {
      const int64_t rows = s - first < kBlock ? s - first : kBlock, keys = causal ? first + rows : s;
      widen_rows(use.q, q.data + head * q.head + first * q.row, q.row, rows, d);
      multiply</*adds=*/false>(use.scores, read(use.q), read(use.k_transposed), rows, padded<A>(keys), d);
      A inverse[kBlock];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = causal ? first + i + 1 : s;
        const RowSums<A> sums = exp_row(use.scores.row(i), seen, keys, static_cast<A>(scale));
        inverse[i] = 1 / sums.sum;
        lse[head * s + first + i] = sums.lse;
      }
      multiply</*adds=*/false>(use.out, read(use.scores), read(use.v), rows, padded<A>(d), keys);
      for (int64_t i = 0; i < rows; ++i) {
        narrow_row(out.data + head * out.head + (first + i) * out.row, use.out.row(i), inverse[i], d);
      }
    }
  }
}

// ---- backward

template <class A>
struct BackwardScratch {
  Scratch<A> scratch;
  Matrix<A> k, k_transposed, v, dk, dv;                                            // of the KV head
  Matrix<A> q, q_transposed, d_out, d_out_transposed, dq_transposed, lse, d_sums;  // of a query head
  Matrix<A> p, ds;  // of a block of keys, [keys, queries]
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
        ds(scratch.matrix(kBlock, extent.s)) {}
};

template <class A>
void zero(Matrix<A> matrix, int64_t rows) {
  __builtin_memset(matrix.data, 0, rows * matrix.stride * sizeof(A));
}

// One key's row: p holds scores and becomes probabilities, ds holds d p and becomes d scores. The first
// `unseen` queries do not see the key; they are computed as well, up to a whole vector, and cleared.
template <class A>
void probabilities_row(A* __restrict p, A* __restrict ds, const A* __restrict lse, const A* __restrict d_sums,
                       int64_t unseen, int64_t queries, A scale) {
  for (int64_t j = unseen / kColumnUnit<A> * kColumnUnit<A>; j < padded<A>(queries); ++j) {
    p[j] = exp_of(scale * p[j] - lse[j]);
    ds[j] = scale * p[j] * (ds[j] - d_sums[j]);
  }
  for (int64_t j = 0; j < unseen; ++j) p[j] = ds[j] = 0;
}

// A block of keys against the queries from `query` on.
template <class A>
void backward_block(const BackwardScratch<A>& use, int64_t key, AttentionExtent extent) {
  const int64_t query = extent.causal ? key : 0;
  const int64_t keys = extent.s - key < kBlock ? extent.s - key : kBlock, queries = extent.s - query;
  const int64_t columns = padded<A>(queries), d = extent.d, d_columns = padded<A>(d);
  multiply<false>(use.p, read(use.k.from(key)), read(use.q_transposed.from(0, query)), keys, columns, d);
  multiply<false>(use.ds, read(use.v.from(key)), read(use.d_out_transposed.from(0, query)), keys, columns, d);
  for (int64_t i = 0; i < keys; ++i) {
    probabilities_row(use.p.row(i), use.ds.row(i), use.lse.data + query, use.d_sums.data + query,
                      extent.causal ? i : 0, queries, static_cast<A>(extent.scale));
  }
  multiply<true>(use.dv.from(key), read(use.p), read(use.d_out.from(query)), keys, d_columns, queries);
  multiply<true>(use.dk.from(key), read(use.ds), read(use.q.from(query)), keys, d_columns, queries);
  multiply<true>(use.dq_transposed.from(0, query), read(use.k_transposed.from(0, key)), read(use.ds), d,
                 columns, keys);
}

template <class T, class A>
void load_head(const BackwardScratch<A>& use, HeadRows<const T> d_out,
               const typename AttentionLoops<T>::Saved& saved, int64_t head, AttentionExtent extent) {
  const T* q = saved.q.data + head * saved.q.head;
  const T* d_rows = d_out.data + head * d_out.head;
  const T* out = saved.out.data + head * saved.out.head;
  widen_rows(use.q, q, saved.q.row, extent.s, extent.d);
  transpose_rows(use.q_transposed, q, saved.q.row, extent.s, extent.d);
  widen_rows(use.d_out, d_rows, d_out.row, extent.s, extent.d);
  transpose_rows(use.d_out_transposed, d_rows, d_out.row, extent.s, extent.d);
  zero(use.dq_transposed, extent.d);
  zero(use.d_sums, 1);
  widen_rows(use.lse, saved.lse + head * extent.s, 0, 1, extent.s);
  for (int64_t i = 0; i < extent.s; ++i) {
    const T* out_row = out + i * saved.out.row;
    const A* d_row = use.d_out.row(i);
    use.d_sums.data[i] = sum_of<A>(extent.d, [=](int64_t j) { return widen(out_row[j]) * d_row[j]; });
  }
}

template <class T, class A>
void store_transposed(HeadRows<T> to, int64_t head, Matrix<A> from, int64_t s, int64_t d) {
  for (int64_t i = 0; i < s; ++i) {
    T* __restrict row = to.data + head * to.head + i * to.row;
    for (int64_t j = 0; j < d; ++j) row[j] = narrow<T>(from.row(j)[i]);
  }
}

template <class T>
void backward(typename AttentionLoops<T>::Gradients gradients, HeadRows<const T> d_out,
              typename AttentionLoops<T>::Saved saved, Accumulator<T>* memory, AttentionExtent extent) {
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
    for (int64_t key = 0; key < s; key += kBlock) backward_block(use, key, extent);
    store_transposed(gradients.q, head, use.dq_transposed, s, d);
  }
  for (int64_t i = 0; i < s; ++i) {
    narrow_row(gradients.k.data + i * gradients.k.row, use.dk.row(i), A{1}, d);
    narrow_row(gradients.v.data + i * gradients.v.row, use.dv.row(i), A{1}, d);
  }
}

template <class T>
int64_t forward_scratch(AttentionExtent extent) {
  return ForwardScratch<Accumulator<T>>(nullptr, extent).scratch.used();
}
template <class T>
int64_t backward_scratch(AttentionExtent extent) {
  return BackwardScratch<Accumulator<T>>(nullptr, extent).scratch.used();
}

}  // namespace

template <class T>
AttentionLoops<T> attention_loops() {
  return {forward_scratch<T>, backward_scratch<T>, forward<T>, backward<T>};
}
SHARDWISE_INSTANTIATE(AttentionLoops, attention_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
