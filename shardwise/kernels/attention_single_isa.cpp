#include "shardwise/kernels/attention_single_isa.h"

#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/vectors.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

/// Heads that share each key and value while it is in registers.
constexpr int64_t kMostHeads = 4;
/// Keys at once. Rows of scores are padded to more.
constexpr int kKeys = 4;
/// Vectors of values at once: with kMostHeads their sums and themselves fit the registers.
constexpr int kValueVectors = kVectorBytes == 64 ? 4 : 2;

template <class A>
struct SingleScratch {
  Scratch<A> scratch;
  MatrixView<A> q, scores;
  SingleScratch(A* memory, int64_t keys, int64_t d)
      : scratch(memory), q(scratch.matrix(kMostHeads, d)), scores(scratch.matrix(kMostHeads, keys)) {}
};

/// scores[h][j] = q[h] · key j, without the key's scale, for four keys at once: the sums of their lanes are
/// then cheap. The last ones may be beyond `count`.
template <int heads, class S, class A>
void add_scores(MatrixView<A> scores, MatrixView<A> q, StoredRows<S> k, int64_t count, int64_t d) {
  constexpr int64_t lanes = kVectorLanes<A>;
  for (int64_t j = 0; j < count; j += kKeys) {
    const S* rows[kKeys];
    for (int key = 0; key < kKeys; ++key) rows[key] = k.data + smaller(j + key, count - 1) * k.row;
    Vector<A> sums[heads][kKeys] = {};
    int64_t i = 0;
    for (; i + lanes <= d; i += lanes) {
      Vector<A> keys[kKeys];
      for (int key = 0; key < kKeys; ++key) keys[key] = load_as<A>(rows[key] + i);
      for (int h = 0; h < heads; ++h)
        for (int key = 0; key < kKeys; ++key) sums[h][key] += load<A>(q.row(h) + i) * keys[key];
    }
    if (i < d) {
      Vector<A> keys[kKeys];
      for (int key = 0; key < kKeys; ++key) keys[key] = load_part_as<A>(rows[key] + i, d - i);
      for (int h = 0; h < heads; ++h)
        for (int key = 0; key < kKeys; ++key) sums[h][key] += load_part<A>(q.row(h) + i, d - i) * keys[key];
    }
    for (int h = 0; h < heads; ++h) store_sums_of_lanes<A>(scores.row(h) + j, sums[h]);
  }
}

/// out[h] = Σ_j probabilities[h][j] · value j, for `vectors` vectors of elements; `part` > 0: one vector with
/// that many elements.
template <int heads, int vectors, class S, class A>
void sum_values(MatrixView<A> out, MatrixView<A> probabilities, StoredRows<S> v, int64_t count, int64_t first,
                int64_t part) {
  constexpr int64_t lanes = kVectorLanes<A>;
  Vector<A> sums[heads][vectors] = {};
  const S* row = v.data + first;
  for (int64_t j = 0; j < count; ++j, row += v.row) {
    for (int c = 0; c < vectors; ++c) {
      const Vector<A> value = part > 0 ? load_part_as<A>(row, part) : load_as<A>(row + c * lanes);
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

template <class A>
void scale_row(A* __restrict row, const float* __restrict scales, int64_t count) {
  for (int64_t j = 0; j < count; ++j) row[j] *= scales[j];
}

/// Computes `heads` query heads of one KV head.
template <int heads, class T, class S>
void attend_heads(BlockRows<Accumulator<T>> parts, HeadRows<const T> q, StoredRows<S> k, StoredRows<S> v,
                  Accumulator<T>* memory, SingleExtent extent) {
  using A = Accumulator<T>;
  constexpr int64_t lanes = kVectorLanes<A>;
  const int64_t d = extent.d, keys = extent.keys;
  const SingleScratch<A> use(memory, keys, d);
  const MatrixView<A> out = {parts.data, parts.stride(d)};
  widen_rows(use.q, q.data, q.head, heads, d);
  add_scores<heads>(use.scores, use.q, k, keys, d);
  for (int h = 0; h < heads; ++h) {
    A* scores = use.scores.row(h);
    if (k.scales) scale_row(scores, k.scales, keys);
    const RowSums<A> row = exp_row(scores, {0, keys}, keys, static_cast<A>(extent.scale));
    out.row(h)[d] = row.largest;
    out.row(h)[d + 1] = row.sum;
    if (v.scales) scale_row(scores, v.scales, keys);
  }
  int64_t i = 0;
  for (; i + kValueVectors * lanes <= d; i += kValueVectors * lanes)
    sum_values<heads, kValueVectors>(out, use.scores, v, keys, i, /*part=*/0);
  for (; i + lanes <= d; i += lanes) sum_values<heads, 1>(out, use.scores, v, keys, i, /*part=*/0);
  if (i < d) sum_values<heads, 1>(out, use.scores, v, keys, i, /*part=*/d - i);
}

template <class T, class S>
void attend(BlockRows<Accumulator<T>> parts, HeadRows<const T> q, StoredRows<S> k, StoredRows<S> v,
            Accumulator<T>* memory, SingleExtent extent) {
  constexpr decltype(&attend_heads<1, T, S>) kByHeads[] = {attend_heads<1, T, S>, attend_heads<2, T, S>,
                                                           attend_heads<3, T, S>, attend_heads<4, T, S>};
  for (int64_t head = 0; head < extent.heads; head += kMostHeads) {
    const int64_t count = smaller(kMostHeads, extent.heads - head);
    kByHeads[count - 1]({parts.data + head * parts.stride(extent.d)}, {q.data + head * q.head, q.head, q.row},
                        k, v, memory, extent);
  }
}

template <class T>
void merge(HeadRows<T> out, Accumulator<T>* lse, BlockRows<Accumulator<T>> parts, int64_t blocks,
           int64_t heads, int64_t d) {
  using A = Accumulator<T>;
  const int64_t stride = parts.stride(d);
  for (int64_t head = 0; head < heads; ++head) {
    A* const first = parts.data + head * stride;
    A largest = first[d];
    for (int64_t i = 1; i < blocks; ++i) {
      const A other = first[i * heads * stride + d];
      largest = other > largest ? other : largest;
    }
    A sum = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      const A* const block = first + i * heads * stride;
      const A weight = exp_of(block[d] - largest);
      sum += weight * block[d + 1];
      for (int64_t j = 0; j < d; ++j) first[j] = (i == 0 ? 0 : first[j]) + weight * block[j];
    }
    lse[head] = largest + log_of(sum);
    narrow_row(out.data + head * out.head, first, A{1} / sum, d);
  }
}

template <class T>
int64_t scratch_of(int64_t keys, int64_t d) {
  return SingleScratch<Accumulator<T>>(nullptr, keys, d).scratch.used();
}

}  // namespace

template <class T>
AttentionSingleLoops<T> attention_single_loops() {
  return {scratch_of<T>, attend<T, T>, attend<T, int8_t>, merge<T>};
}
SHARDWISE_INSTANTIATE(AttentionSingleLoops, attention_single_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
