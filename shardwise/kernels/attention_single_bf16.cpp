// Attention of one query by bf16 dot products, as attention_single_isa.cpp otherwise. Probabilities are
// rounded to bf16 before they are multiplied.
#include "shardwise/kernels/attention_single_bf16.h"

#include "shardwise/kernels/attention_tiles.h"

namespace shardwise::kernels::avx512_bf16 {
namespace {

/// Heads that share each key and value while it is in registers.
constexpr int64_t kMostHeads = 4;
/// Keys at once. Rows of scores are padded to more.
constexpr int kKeys = 4;

/// Rows of bf16 in a row of floats.
using Rows = MatrixView<float>;

struct SingleScratch {
  Scratch<float> scratch;
  Rows q;                    // bf16, zero beyond d
  MatrixView<float> scores;  // fp32
  Rows p;                    // bf16, zero beyond the keys
  SingleScratch(float* memory, int64_t keys, int64_t d)
      : scratch(memory),
        q(scratch.matrix(kMostHeads, parts_of(d) * kHalf)),
        scores(scratch.matrix(kMostHeads, keys)),
        p(scratch.matrix(kMostHeads, parts_of(keys) * kHalf)) {}
};

[[gnu::always_inline]] inline __m512bh columns_of(const Bf16* row, int64_t part, int64_t d) {
  return reinterpret_cast<__m512bh>(load_part(row, part, d));
}
[[gnu::always_inline]] inline __m512bh load_pairs(const float* words) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_ps(words));
}

/// scores[h][j] = q[h] · key j. `parts` is parts_of(d), known to the compiler, or 0.
template <int heads, int parts>
void add_scores(MatrixView<float> scores, Rows q, StoredRows<Bf16> k, int64_t count, int64_t d) {
  for (int64_t j = 0; j < count; j += kKeys) {
    Vector<float> sums[heads][kKeys] = {};
    for (int64_t part = 0; part < (parts > 0 ? parts : parts_of(d)); ++part) {
      for (int key = 0; key < kKeys; ++key) {
        const __m512bh columns = columns_of(k.data + smaller(j + key, count - 1) * k.row, part, d);
        for (int h = 0; h < heads; ++h)
          sums[h][key] = _mm512_dpbf16_ps(sums[h][key], load_pairs(q.row(h) + part * kHalf), columns);
      }
    }
    for (int h = 0; h < heads; ++h) store_sums_of_lanes<float>(scores.row(h) + j, sums[h]);
  }
}

/// Writes the probabilities in bf16.
void round_row(float* to, const float* scores, int64_t count) {
  for (int64_t first = 0; first < count; first += kPart) {
    __m512 half[2];
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t at = first + i * kHalf;
      half[i] = _mm512_maskz_loadu_ps(first_of_16(count - at), scores + at);
    }
    _mm512_storeu_si512(to + first / 2, row_of(half[0], half[1]));
  }
}

/// Writes 32 columns, of which `low` has the first four of each eight and `high` the others.
void store_columns(float* to, __m512 low, __m512 high, int64_t count) {
  const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i last = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  _mm512_mask_storeu_ps(to, first_of_16(count), _mm512_permutex2var_ps(low, first, high));
  _mm512_mask_storeu_ps(to + kHalf, first_of_16(count - kHalf), _mm512_permutex2var_ps(low, last, high));
}

/// out[h] = Σ_j probabilities[h][j] · value j, for `parts` parts of columns from `first` on: two values at
/// once.
template <int heads, int parts>
void sum_values(MatrixView<float> out, Rows p, StoredRows<Bf16> v, int64_t count, int64_t first, int64_t d) {
  __m512 low[heads][parts] = {}, high[heads][parts] = {};
  for (int64_t j = 0; j < count; j += 2) {
    const Bf16* const row = v.data + j * v.row;
    const Bf16* const next = j + 1 < count ? row + v.row : row;  // whose probability is then 0
    for (int part = 0; part < parts; ++part) {
      const auto even = reinterpret_cast<__m512i>(columns_of(row, first + part, d));
      const auto odd = reinterpret_cast<__m512i>(columns_of(next, first + part, d));
      const auto low_pairs = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
      const auto high_pairs = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
      for (int h = 0; h < heads; ++h) {
        const auto two = reinterpret_cast<__m512bh>(_mm512_set1_ps(p.row(h)[j / 2]));
        low[h][part] = _mm512_dpbf16_ps(low[h][part], two, low_pairs);
        high[h][part] = _mm512_dpbf16_ps(high[h][part], two, high_pairs);
      }
    }
  }
  for (int h = 0; h < heads; ++h) {
    for (int part = 0; part < parts; ++part) {
      const int64_t column = (first + part) * kPart;
      store_columns(out.row(h) + column, low[h][part], high[h][part], d - column);
    }
  }
}

/// Computes `heads` query heads of one KV head.
template <int heads>
void attend_heads(BlockRows<float> parts, HeadRows<const Bf16> q, StoredRows<Bf16> k, StoredRows<Bf16> v,
                  float* memory, SingleExtent extent) {
  const int64_t d = extent.d, keys = extent.keys;
  const SingleScratch use(memory, keys, d);
  const MatrixView<float> out = {parts.data, parts.stride(d)};
  for (int h = 0; h < heads; ++h) {
    for (int64_t part = 0; part < parts_of(d); ++part)
      _mm512_storeu_si512(use.q.row(h) + part * kHalf, load_part(q.data + h * q.head, part, d));
  }
  const auto add = parts_of(d) == 2   ? add_scores<heads, 2>
                   : parts_of(d) == 4 ? add_scores<heads, 4>
                                      : add_scores<heads, 0>;
  add(use.scores, use.q, k, keys, d);
  for (int h = 0; h < heads; ++h) {
    float* scores = use.scores.row(h);
    const RowSums<float> row = exp_row(scores, {0, keys}, keys, static_cast<float>(extent.scale));
    out.row(h)[d] = row.largest;
    out.row(h)[d + 1] = row.sum;
    round_row(use.p.row(h), scores, keys);
  }
  int64_t part = 0;
  for (; part + 2 <= parts_of(d); part += 2) sum_values<heads, 2>(out, use.p, v, keys, part, d);
  if (part < parts_of(d)) sum_values<heads, 1>(out, use.p, v, keys, part, d);
}

void attend(BlockRows<float> parts, HeadRows<const Bf16> q, StoredRows<Bf16> k, StoredRows<Bf16> v,
            float* memory, SingleExtent extent) {
  constexpr decltype(&attend_heads<1>) kByHeads[] = {attend_heads<1>, attend_heads<2>, attend_heads<3>,
                                                     attend_heads<4>};
  for (int64_t head = 0; head < extent.heads; head += kMostHeads) {
    const int64_t count = smaller(kMostHeads, extent.heads - head);
    kByHeads[count - 1]({parts.data + head * parts.stride(extent.d)}, {q.data + head * q.head, q.head, q.row},
                        k, v, memory, extent);
  }
}

int64_t scratch_of(int64_t keys, int64_t d) {
  return larger(SingleScratch(nullptr, keys, d).scratch.used(),
                avx512::attention_single_loops<Bf16>().scratch(keys, d));
}

}  // namespace

AttentionSingleLoops<Bf16> attention_single_loops() {
  AttentionSingleLoops<Bf16> loops = avx512::attention_single_loops<Bf16>();
  loops.scratch = scratch_of;
  loops.attend = attend;
  return loops;
}

}  // namespace shardwise::kernels::avx512_bf16
