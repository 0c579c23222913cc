#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/vectors.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// Heads that share each key and value while it is in registers.
constexpr int64_t kMostHeads = 4;
/// Vectors of values at once: with kMostHeads their sums and themselves fit the registers.
constexpr int kValueVectors = kVectorBytes == 64 ? 4 : 2;

template <class A>
struct SingleScratch {
  Scratch<A> scratch;
  MatrixView<A> q, scores, out;
  SingleScratch(A* memory, AttentionExtent extent)
      : scratch(memory),
        q(scratch.matrix(kMostHeads, extent.d)),
        scores(scratch.matrix(kMostHeads, keys_of(extent))),
        out(scratch.matrix(kMostHeads, extent.d)) {}
};

/// scores[h][j] = q[h] · key j, for `count` keys from `k` on.
template <int heads, class T, class A>
void add_scores(MatrixView<A> scores, MatrixView<A> q, const T* k, int64_t k_row, int64_t count, int64_t d) {
  constexpr int64_t lanes = kVectorLanes<A>;
  for (int64_t j = 0; j < count; ++j, k += k_row) {
    Vector<A> sums[heads] = {};
    int64_t i = 0;
    for (; i + lanes <= d; i += lanes) {
      const Vector<A> key = load(k + i);
      for (int h = 0; h < heads; ++h) sums[h] += load<A>(q.row(h) + i) * key;
    }
    if (i < d) {
      const Vector<A> key = load_part(k + i, d - i);
      for (int h = 0; h < heads; ++h) sums[h] += load_part<A>(q.row(h) + i, d - i) * key;
    }
    for (int h = 0; h < heads; ++h) scores.row(h)[j] = sum_of_lanes<A>(sums[h]);
  }
}

/// out[h] = Σ_j probabilities[h][j] · value j, for `vectors` vectors of elements; `part` > 0: one vector with
/// that many elements.
template <int heads, int vectors, class T, class A>
void sum_values(MatrixView<A> out, MatrixView<A> probabilities, const T* v, int64_t v_row, int64_t count,
                int64_t first, int64_t part) {
  constexpr int64_t lanes = kVectorLanes<A>;
  Vector<A> sums[heads][vectors] = {};
  v += first;
  for (int64_t j = 0; j < count; ++j, v += v_row) {
    for (int c = 0; c < vectors; ++c) {
      const Vector<A> value = part > 0 ? load_part(v, part) : load(v + c * lanes);
      for (int h = 0; h < heads; ++h) sums[h][c] += probabilities.row(h)[j] * value;
    }
  }
  for (int h = 0; h < heads; ++h) {
    if (part > 0) {
      for (int64_t lane = 0; lane < part; ++lane) out.row(h)[first + lane] = sums[h][0][lane];
      continue;
    }
    for (int c = 0; c < vectors; ++c) store<A>(out.row(h) + first + c * lanes, sums[h][c]);
  }
}

/// Computes `heads` query heads of one KV head.
template <int heads, class T>
void forward_heads(HeadRows<T> out, Accumulator<T>* lse, HeadRows<const T> q, HeadRows<const T> k,
                   HeadRows<const T> v, Accumulator<T>* memory, AttentionExtent extent) {
  using A = Accumulator<T>;
  constexpr int64_t lanes = kVectorLanes<A>;
  const SingleScratch<A> use(memory, extent);
  const int64_t d = extent.d;
  const IndexRange attended = attended_keys(/*query=*/0, extent);
  widen_rows(use.q, q.data, q.head, heads, d);
  add_scores<heads>(use.scores, use.q, k.data + attended.begin * k.row, k.row, attended.size(), d);
  A sums[heads];
  for (int h = 0; h < heads; ++h) {
    const RowSums<A> row =
        exp_row(use.scores.row(h), {0, attended.size()}, attended.size(), static_cast<A>(extent.scale));
    sums[h] = row.sum;
    lse[h * extent.head_rows] = row.lse;
  }
  const T* values = v.data + attended.begin * v.row;
  int64_t i = 0;
  for (; i + kValueVectors * lanes <= d; i += kValueVectors * lanes)
    sum_values<heads, kValueVectors>(use.out, use.scores, values, v.row, attended.size(), i, /*part=*/0);
  for (; i + lanes <= d; i += lanes)
    sum_values<heads, 1>(use.out, use.scores, values, v.row, attended.size(), i, /*part=*/0);
  if (i < d) sum_values<heads, 1>(use.out, use.scores, values, v.row, attended.size(), i, /*part=*/d - i);
  for (int h = 0; h < heads; ++h) narrow_row(out.data + h * out.head, use.out.row(h), A{1} / sums[h], d);
}

template <class T>
void forward(HeadRows<T> out, Accumulator<T>* lse, HeadRows<const T> q, HeadRows<const T> k,
             HeadRows<const T> v, Accumulator<T>* memory, AttentionExtent extent) {
  constexpr decltype(&forward_heads<1, T>) kByHeads[] = {forward_heads<1, T>, forward_heads<2, T>,
                                                         forward_heads<3, T>, forward_heads<4, T>};
  for (int64_t head = 0; head < extent.heads; head += kMostHeads) {
    const int64_t count = smaller(kMostHeads, extent.heads - head);
    kByHeads[count - 1]({out.data + head * out.head, out.head, out.row}, lse + head * extent.head_rows,
                        {q.data + head * q.head, q.head, q.row}, k, v, memory, extent);
  }
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
