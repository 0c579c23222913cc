#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/attention_by_tiles.h"
#include "shardwise/kernels/attention_tiles.h"

// Online softmax (Milakov and Gimelshein 2018; Dao et al. 2022) over blocks of keys. Scores and outputs are
// transposed, a vector holding 16 queries of a key or of a column, so that no sum or maximum goes across a
// vector.
namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlockParts = 8;  // 256 keys, whose scores of an item fit the first-level cache
constexpr int64_t kItems = 4;       // that use a block of keys while it is in the second-level cache
constexpr float kMasked = -1e30F;   // the score of a masked key, finite so that exp2_of gives 0
constexpr float kLowest = -1e20F;   // the largest score before any key

/// The softmax of 32 queries over the keys so far.
struct State {
  alignas(64) float largest[kPart];  // score, times log2(e) and the scale
  alignas(64) float sum[kPart];      // of 2^(score − largest)
};

/// Up to 32 queries of a head.
struct Item {
  int64_t head;
  IndexRange queries;
  Tile q;                 // [32 columns][16 queries]
  MatrixView<float> out;  // [columns][32 queries], unnormalized
  State& state;

  /// Returns the parts of 32 keys that any of the queries attends to.
  IndexRange parts(const AttentionExtent& extent) const {
    return {attended_keys(queries.begin, extent).begin / kPart,
            parts_of(attended_keys(queries.end - 1, extent).end)};
  }
};

/// Scratch memory: packed operands, a block's scores and the items' outputs.
struct TileScratch {
  int64_t d_parts;
  Scratch<float> scratch;
  Tile k;                    // [16 keys][32 columns]
  Tile v;                    // [16 columns][32 keys]
  Tile p;                    // [32 keys][16 queries]
  MatrixView<float> scores;  // [keys][32 queries]
  MatrixView<float> kept;    // [parts][32 queries]: of 32 bits, which keys are not dropped
  Tile q;
  MatrixView<float> out;  // of kItems items

  TileScratch(float* memory, const AttentionExtent& extent)
      : d_parts(parts_of(extent.d)),
        scratch(memory),
        k(scratch.matrix(2 * parts_of(keys_of(extent)) * d_parts, kTileWords)),
        v(scratch.matrix(2 * parts_of(keys_of(extent)) * d_parts, kTileWords)),
        p(scratch.matrix(2 * kBlockParts, kTileWords)),
        scores(scratch.matrix(kBlockParts * kPart, kPart)),
        kept(scratch.matrix(kBlockParts, kPart)),
        q(scratch.matrix(kItems * 2 * d_parts, kTileWords)),
        out(scratch.matrix(kItems * d_parts * kPart, kPart)) {}

  Item item(int64_t index, int64_t head, IndexRange queries, State& state) const {
    return {head, queries, q.from(index * 2 * d_parts), out.from(index * d_parts * kPart), state};
  }
};

/// Packs an item's queries, and sets its state to that before any key.
void start(const Item& item, HeadRows<const Bf16> q, int64_t d) {
  const Bf16* rows = q.data + item.head * q.head + item.queries.begin * q.row;
  pack_rows_right(item.q, {rows, q.head, q.row}, item.queries.size(), d);
  zero(item.out, parts_of(d) * kPart);
  for (int64_t i = 0; i < kPart; ++i) item.state.largest[i] = kLowest;
  for (int64_t i = 0; i < kPart; ++i) item.state.sum[i] = 0;
}

/// Computes the scores of an item with a block's keys.
void multiply_keys(const TileScratch& use, const Item& item, IndexRange parts) {
  write_to_memory(item.q.data);
  for (int64_t part = 0; part < parts.size(); ++part) {
    const Tile upper = use.k.from(2 * (parts.begin + part) * use.d_parts);
    multiply_tiles(use.scores.from(part * kPart), upper, upper.from(use.d_parts), item.q,
                   item.q.from(use.d_parts), use.d_parts);
  }
}

/// Adds a block's values, times their probabilities, to an item's outputs.
void add_values(const TileScratch& use, const Item& item, IndexRange parts) {
  write_to_memory(use.p.data);
  for (int64_t column = 0; column < use.d_parts; ++column) {
    sum_products<true>(item.out.from(column * kPart), parts.size(), [&](int64_t part) {
      const Tile v = use.v.from((parts.begin + part) * 2 * use.d_parts + 2 * column);
      return Factors{v.row(0), v.row(1), use.p.row(2 * part), use.p.row(2 * part + 1)};
    });
  }
}

void mask_scores(const TileScratch& use, const Item& item, IndexRange parts, const AttentionExtent& extent) {
  const __m512 masked = _mm512_set1_ps(kMasked);
  for (int64_t key = 0; key < parts.size() * kPart; ++key) {
    const __mmask32 others = ~attending(parts.begin * kPart + key, item.queries.begin, extent);
    if (others == 0) continue;
    _mm512_mask_storeu_ps(use.scores.row(key), static_cast<__mmask16>(others), masked);
    _mm512_mask_storeu_ps(use.scores.row(key) + kHalf, static_cast<__mmask16>(others >> kHalf), masked);
  }
}

/// Raises the largest scores to those of a block, and scales what was added up to them.
void raise_largest(const TileScratch& use, const Item& item, int64_t keys, float factor) {
  __m512 scale[2];
  bool is_raised = false;
  for (int64_t half = 0; half < 2; ++half) {
    const MatrixView<float> scores = use.scores.from(0, half * kHalf);
    __m512 even = _mm512_loadu_ps(scores.row(0)), odd = _mm512_loadu_ps(scores.row(1));
    for (int64_t key = 2; key < keys; key += 2) {
      even = _mm512_max_ps(even, _mm512_loadu_ps(scores.row(key)));
      odd = _mm512_max_ps(odd, _mm512_loadu_ps(scores.row(key + 1)));
    }
    float *const largest = item.state.largest + half * kHalf, *const sum = item.state.sum + half * kHalf;
    const __m512 before = _mm512_loadu_ps(largest);
    const __m512 after =
        _mm512_max_ps(before, _mm512_mul_ps(_mm512_max_ps(even, odd), _mm512_set1_ps(factor)));
    is_raised |= _mm512_cmp_ps_mask(before, after, _CMP_NEQ_UQ) != 0;
    scale[half] = exp2_of(_mm512_sub_ps(before, after));
    _mm512_storeu_ps(largest, after);
    _mm512_storeu_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(sum), scale[half]));
  }
  if (!is_raised) return;
  for (int64_t column = 0; column < use.d_parts * kPart; ++column) {
    float* out = item.out.row(column);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_loadu_ps(out), scale[0]));
    _mm512_storeu_ps(out + kHalf, _mm512_mul_ps(_mm512_loadu_ps(out + kHalf), scale[1]));
  }
}

/// Turns 16 queries' scores of a part of keys into probabilities in a tile, and returns their sums.
template <bool drops>
__m512 add_exp(const TileScratch& use, int64_t part, int64_t half, __m512 factor, __m512 largest) {
  const float* kept = use.kept.row(part) + half * kHalf;
  const float* scores = use.scores.row(part * kPart) + half * kHalf;
  float* tile = use.p.row(2 * part + half);
  __m512 sums = _mm512_setzero_ps();
  for (int64_t key = 0; key < kPart; key += 2, tile += kHalf) {
    __m512 p[2];
    for (int64_t i = 0; i < 2; ++i) {
      const __m512 score = _mm512_loadu_ps(scores + (key + i) * use.scores.stride);
      p[i] = exp2_of(_mm512_fmsub_ps(score, factor, largest));
      sums = _mm512_add_ps(sums, p[i]);
      if constexpr (drops) p[i] = _mm512_maskz_mov_ps(kept_of(kept, key + i), p[i]);
    }
    _mm512_storeu_si512(tile, pairs_of(p[0], p[1]));
  }
  return sums;
}

/// Adds the keys of `parts` to an item's state.
void add_keys(const TileScratch& use, const Item& item, IndexRange parts, const AttentionExtent& extent) {
  const auto factor = static_cast<float>(extent.scale * kLog2E);
  const bool drops = extent.mask.draws.threshold > 0;
  multiply_keys(use, item, parts);
  mask_scores(use, item, parts, extent);
  raise_largest(use, item, parts.size() * kPart, factor);
  if (drops)
    draw_kept(use.kept, parts, item.queries.size(),
              extent.mask.first_row + item.head * extent.head_rows + item.queries.begin, extent.mask);
  for (int64_t half = 0; half < 2; ++half) {
    const __m512 largest = _mm512_loadu_ps(item.state.largest + half * kHalf);
    __m512 sums = _mm512_loadu_ps(item.state.sum + half * kHalf);
    for (int64_t part = 0; part < parts.size(); ++part) {
      const auto add = drops ? add_exp<true> : add_exp<false>;
      sums = _mm512_add_ps(sums, add(use, part, half, _mm512_set1_ps(factor), largest));
    }
    _mm512_storeu_ps(item.state.sum + half * kHalf, sums);
  }
  add_values(use, item, parts);
}

/// Writes an item's normalized outputs.
void finish(const Item& item, HeadRows<Bf16> out, float* lse, const AttentionExtent& extent) {
  const float scale = extent.mask.draws.threshold > 0 ? static_cast<float>(extent.mask.scale) : 1.0F;
  for (int64_t i = 0; i < item.queries.size(); ++i)
    lse[item.head * extent.head_rows + item.queries.begin + i] =
        item.state.largest[i] * 0.693147180559945309F + log_of(item.state.sum[i]);  // ln(2)
  float factors[kPart];
  for (int64_t i = 0; i < kPart; ++i) factors[i] = scale / item.state.sum[i];
  Bf16* rows = out.data + item.head * out.head + item.queries.begin * out.row;
  write_rows({rows, out.head, out.row}, item.queries.size(), extent.d, item.out, factors);
}

void forward(HeadRows<Bf16> out, float* lse, HeadRows<const Bf16> q, HeadRows<const Bf16> k,
             HeadRows<const Bf16> v, float* memory, AttentionExtent extent) {
  if (memory == nullptr) __builtin_unreachable();  // only scratch_of has none, which writes to no matrix
  const TileRegisters configured;
  const TileScratch use(memory, extent);
  pack_rows(use.k, k, keys_of(extent), extent.d);
  pack_columns(use.v, v, keys_of(extent), extent.d);
  const int64_t count = parts_of(extent.s) * extent.heads;
  for (int64_t first = 0; first < count; first += kItems) {
    const int64_t items = smaller(kItems, count - first);
    State states[kItems];
    const auto item = [&](int64_t i) {
      const int64_t query = (first + i) / extent.heads * kPart;
      return use.item(i, (first + i) % extent.heads, {query, smaller(query + kPart, extent.s)}, states[i]);
    };
    for (int64_t i = 0; i < items; ++i) start(item(i), q, extent.d);
    const int64_t end = item(items - 1).parts(extent).end;
    int64_t block = item(0).parts(extent).begin / kBlockParts * kBlockParts;
    for (; block < end; block += kBlockParts) {
      for (int64_t i = 0; i < items; ++i) {
        const IndexRange all = item(i).parts(extent);
        const IndexRange parts = {larger(all.begin, block), smaller(all.end, block + kBlockParts)};
        if (parts.size() > 0) add_keys(use, item(i), parts, extent);
      }
    }
    for (int64_t i = 0; i < items; ++i) finish(item(i), out, lse, extent);
  }
}

int64_t scratch_of(AttentionExtent extent) {
  return TileScratch(nullptr, extent).scratch.used();
}

}  // namespace

AttentionForwardLoops<Bf16> attention_forward_loops() {
  return {scratch_of, forward};
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
