#include "shardwise/kernels/attention_by_tiles.h"
#include "shardwise/kernels/attention_tiles.h"

// As attention_backward_isa.cpp: scores, probabilities and their gradients are transposed, [keys][queries].
// Blocks of 128 keys and 128 queries, of which those parts of 32 x 32 are computed that the mask does not
// clear.
namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlockParts = 4;
using Saved = AttentionBackwardLoops<Bf16>::Saved;
using Gradients = AttentionBackwardLoops<Bf16>::Gradients;

/// Scratch memory: operands packed as left ([rows][32]) or right ([32][columns]) factors, sums and a block.
struct BackwardScratch {
  int64_t d_parts;
  Scratch<float> scratch;
  Tile k, v, k_columns;                     // of a KV head: [keys][d], [keys][d], [d][keys]
  MatrixView<float> dk, dv;                 // [keys][d]
  Tile q, d_out, q_columns, d_out_columns;  // of a query head: [d][queries] twice, [queries][d] twice
  MatrixView<float> lse, d_sums;            // per query; lse times log2(e)
  MatrixView<float> dq;                     // of a block of queries, [d][queries]
  MatrixView<float> scores, dp;             // of a part: [32 keys][32 queries]
  Tile p, ds, ds_right;                     // of a block: [16 keys][32 queries] twice, [32 keys][16 queries]
  MatrixView<float> kept;                   // of a part: draw_kept

  BackwardScratch(float* memory, const AttentionExtent& extent)
      : d_parts(parts_of(extent.d)),
        scratch(memory),
        k(tiles(extent)),
        v(tiles(extent)),
        k_columns(tiles(extent)),
        dk(scratch.matrix(parts_of(extent.s) * kPart, d_parts * kPart)),
        dv(scratch.matrix(parts_of(extent.s) * kPart, d_parts * kPart)),
        q(tiles(extent)),
        d_out(tiles(extent)),
        q_columns(tiles(extent)),
        d_out_columns(tiles(extent)),
        lse(scratch.matrix(1, parts_of(extent.s) * kPart)),
        d_sums(scratch.matrix(1, parts_of(extent.s) * kPart)),
        dq(scratch.matrix(d_parts * kPart, kBlockParts * kPart)),
        scores(scratch.matrix(kPart, kPart)),
        dp(scratch.matrix(kPart, kPart)),
        p(scratch.matrix(2 * kBlockParts * kBlockParts, kTileWords)),
        ds(scratch.matrix(2 * kBlockParts * kBlockParts, kTileWords)),
        ds_right(scratch.matrix(2 * kBlockParts * kBlockParts, kTileWords)),
        kept(scratch.matrix(1, kPart)) {}

  Tile tiles(const AttentionExtent& extent) {
    return scratch.matrix(2 * parts_of(extent.s) * d_parts, kTileWords);
  }
};

/// A head of a pass over blocks.
struct Head {
  const BackwardScratch& use;
  const AttentionExtent& extent;
  uint64_t first_row;  // of the mask

  /// Returns the parts of keys that a part of queries attends to.
  IndexRange key_parts(int64_t query_part) const {
    const int64_t first = query_part * kPart, last = smaller(first + kPart, extent.s) - 1;
    return {attended_keys(first, extent).begin / kPart, parts_of(attended_keys(last, extent).end)};
  }
  bool is_attended(int64_t key_part, int64_t query_part) const {
    const IndexRange parts = key_parts(query_part);
    return parts.begin <= key_part && key_part < parts.end;
  }
};

/// Returns the index of a part's first tile in its block.
int64_t tile_of(int64_t key_part, int64_t query_part) {
  return 2 * (key_part % kBlockParts * kBlockParts + query_part % kBlockParts);
}

void load_head(const BackwardScratch& use, HeadRows<const Bf16> d_out, const Saved& saved, int64_t head,
               const AttentionExtent& extent) {
  const int64_t s = extent.s, d = extent.d;
  const HeadRows<const Bf16> q = {saved.q.data + head * saved.q.head, 0, saved.q.row};
  const HeadRows<const Bf16> d_rows = {d_out.data + head * d_out.head, 0, d_out.row};
  const Bf16* out = saved.out.data + head * saved.out.head;
  const float* lse = saved.lse + head * extent.head_rows;
  pack_rows_right(use.q, q, s, d);
  pack_rows_right(use.d_out, d_rows, s, d);
  pack_columns_right(use.q_columns, q, s, d);
  pack_columns_right(use.d_out_columns, d_rows, s, d);
  zero(use.lse, 1);
  zero(use.d_sums, 1);
  for (int64_t i = 0; i < s; ++i) {
    const Bf16 *out_row = out + i * saved.out.row, *d_row = d_rows.data + i * d_rows.row;
    use.lse.data[i] = lse[i] * static_cast<float>(kLog2E);
    use.d_sums.data[i] = sum_of<float>(d, [=](int64_t j) { return widen(out_row[j]) * widen(d_row[j]); });
  }
}

/// The probabilities of a key and their gradients for 32 queries.
struct KeyRow {
  __m512 p[2], ds[2];
};

template <bool drops>
[[gnu::always_inline]] inline KeyRow key_row(const Head& of, int64_t key, int64_t queries, __mmask32 attends,
                                             __m512 factor, __m512 kept_scale) {
  KeyRow row;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = half * kHalf;
    const __m512 score = _mm512_loadu_ps(of.use.scores.row(key) + first);
    const __m512 lse = _mm512_loadu_ps(of.use.lse.data + queries + first);
    const auto mask = static_cast<__mmask16>(attends >> first);
    row.p[half] = _mm512_maskz_mov_ps(mask, exp2_of(_mm512_fmsub_ps(score, factor, lse)));
    __m512 dp = _mm512_loadu_ps(of.use.dp.row(key) + first);
    const __m512 probability = row.p[half];
    if constexpr (drops) {
      const __mmask16 kept = kept_of(of.use.kept.data + first, key);
      dp = _mm512_maskz_mul_ps(kept, dp, kept_scale);
      row.p[half] = _mm512_maskz_mul_ps(kept, probability, kept_scale);
    }
    const __m512 d_sums = _mm512_loadu_ps(of.use.d_sums.data + queries + first);
    row.ds[half] = _mm512_maskz_mul_ps(mask, probability, _mm512_sub_ps(dp, d_sums));
  }
  return row;
}

/// Computes a part's probabilities and their gradients, without the factor of q·k, into tiles. Queries beyond
/// the last are zero, as are their d_out, lse and d_sums, so that they add nothing.
template <bool drops>
void probabilities(const Head& of, int64_t key_part, int64_t query_part) {
  const BackwardScratch& use = of.use;
  const AttentionExtent& extent = of.extent;
  const int64_t queries = query_part * kPart, tile = tile_of(key_part, query_part);
  const __m512 factor = _mm512_set1_ps(static_cast<float>(extent.scale * kLog2E));
  const __m512 kept_scale = _mm512_set1_ps(static_cast<float>(extent.mask.scale));
  if constexpr (drops)
    draw_kept(use.kept, {key_part, key_part + 1}, smaller(extent.s - queries, kPart), of.first_row + queries,
              extent.mask);
  for (int64_t pair = 0; pair < kHalf; ++pair) {
    KeyRow rows[2];
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t key = 2 * pair + i;
      const __mmask32 attends = attending(key_part * kPart + key, queries, extent);
      rows[i] = key_row<drops>(of, key, queries, attends, factor, kept_scale);
      const int64_t offset = key % kHalf * kHalf;
      _mm512_storeu_si512(use.p.row(tile + key / kHalf) + offset, row_of(rows[i].p[0], rows[i].p[1]));
      _mm512_storeu_si512(use.ds.row(tile + key / kHalf) + offset, row_of(rows[i].ds[0], rows[i].ds[1]));
    }
    for (int64_t half = 0; half < 2; ++half)
      _mm512_storeu_si512(use.ds_right.row(tile + half) + pair * kHalf,
                          pairs_of(rows[0].ds[half], rows[1].ds[half]));
  }
}

void add_part(const Head& of, int64_t key_part, int64_t query_part) {
  const BackwardScratch& use = of.use;
  const int64_t n = use.d_parts;
  const Tile k = use.k.from(2 * key_part * n), v = use.v.from(2 * key_part * n);
  const Tile q = use.q.from(2 * query_part * n), d_out = use.d_out.from(2 * query_part * n);
  multiply_tiles(use.scores, k, k.from(n), q, q.from(n), n);
  multiply_tiles(use.dp, v, v.from(n), d_out, d_out.from(n), n);
  of.extent.mask.draws.threshold > 0 ? probabilities<true>(of, key_part, query_part)
                                     : probabilities<false>(of, key_part, query_part);
}

/// Adds the products of a block's tiles `left` [keys][queries] with rows of queries to a part of keys.
void add_to_keys(MatrixView<float> sums, Tile left, Tile right, const Head& of, int64_t key_part,
                 IndexRange query_parts) {
  const int64_t n = of.use.d_parts;
  for (int64_t column = 0; column < n; ++column) {
    const MatrixView<float> to = sums.from(key_part * kPart, column * kPart);
    sum_products<true>(to, query_parts.size(), [&](int64_t i) {
      const int64_t part = query_parts.begin + i;
      if (!of.is_attended(key_part, part)) return Factors{};
      const Tile tiles = left.from(tile_of(key_part, part)), rows = right.from(2 * (part * n + column));
      return Factors{tiles.row(0), tiles.row(1), rows.row(0), rows.row(1)};
    });
  }
}

/// Adds the products of a part's keys with the gradients of a block's scores to dq.
void add_to_queries(const Head& of, IndexRange key_parts, int64_t query_part) {
  const int64_t n = of.use.d_parts;
  for (int64_t column = 0; column < n; ++column) {
    const MatrixView<float> to = of.use.dq.from(column * kPart, query_part % kBlockParts * kPart);
    sum_products<true>(to, key_parts.size(), [&](int64_t i) {
      const int64_t part = key_parts.begin + i;
      if (!of.is_attended(part, query_part)) return Factors{};
      const Tile columns = of.use.k_columns.from(2 * (part * n + column));
      const Tile tiles = of.use.ds_right.from(tile_of(part, query_part));
      return Factors{columns.row(0), columns.row(1), tiles.row(0), tiles.row(1)};
    });
  }
}

void add_block(const Head& of, IndexRange key_parts, IndexRange query_parts) {
  const BackwardScratch& use = of.use;
  for (int64_t query = query_parts.begin; query < query_parts.end; ++query) {
    for (int64_t key = key_parts.begin; key < key_parts.end; ++key) {
      if (of.is_attended(key, query)) add_part(of, key, query);
    }
  }
  write_to_memory(use.p.data);
  for (int64_t key = key_parts.begin; key < key_parts.end; ++key) {
    add_to_keys(use.dv, use.p, use.d_out_columns, of, key, query_parts);
    add_to_keys(use.dk, use.ds, use.q_columns, of, key, query_parts);
  }
  for (int64_t query = query_parts.begin; query < query_parts.end; ++query)
    add_to_queries(of, key_parts, query);
}

/// Processes a head's queries in blocks, and writes their gradients.
void add_head(const Head& of, HeadRows<Bf16> dq) {
  const AttentionExtent& extent = of.extent;
  const int64_t parts = parts_of(extent.s);
  float factors[kPart];
  for (float& factor : factors) factor = static_cast<float>(extent.scale);
  for (int64_t first = 0; first < parts; first += kBlockParts) {
    const IndexRange queries = {first, smaller(first + kBlockParts, parts)};
    const int64_t end = of.key_parts(queries.end - 1).end;
    zero(of.use.dq, of.use.d_parts * kPart);
    for (int64_t key = of.key_parts(first).begin / kBlockParts * kBlockParts; key < end; key += kBlockParts)
      add_block(of, {key, smaller(key + kBlockParts, end)}, queries);
    for (int64_t part = queries.begin; part < queries.end; ++part) {
      const int64_t query = part * kPart;
      write_rows({dq.data + query * dq.row, dq.head, dq.row}, smaller(extent.s - query, kPart), extent.d,
                 of.use.dq.from(0, part % kBlockParts * kPart), factors);
    }
  }
}

void backward(Gradients gradients, HeadRows<const Bf16> d_out, Saved saved, float* memory,
              AttentionExtent extent) {
  if (memory == nullptr) __builtin_unreachable();  // only scratch_of has none, which writes to no matrix
  const int64_t s = extent.s, d = extent.d;
  const TileRegisters configured;
  const BackwardScratch use(memory, extent);
  pack_rows(use.k, saved.k, s, d);
  pack_rows(use.v, saved.v, s, d);
  pack_columns(use.k_columns, saved.k, s, d);
  zero(use.dk, parts_of(s) * kPart);
  zero(use.dv, parts_of(s) * kPart);
  for (int64_t head = 0; head < extent.heads; ++head) {
    load_head(use, d_out, saved, head, extent);
    write_to_memory(use.q.data);
    const HeadRows<Bf16> dq = gradients.q;
    add_head({use, extent, extent.mask.first_row + head * extent.head_rows},
             {dq.data + head * dq.head, dq.head, dq.row});
  }
  for (int64_t i = 0; i < s; ++i) {
    narrow_row(gradients.k.data + i * gradients.k.row, use.dk.row(i), static_cast<float>(extent.scale), d);
    narrow_row(gradients.v.data + i * gradients.v.row, use.dv.row(i), 1.0F, d);
  }
}

int64_t scratch_of(AttentionExtent extent) {
  return BackwardScratch(nullptr, extent).scratch.used();
}

}  // namespace

AttentionBackwardLoops<Bf16> attention_backward_loops() {
  return {scratch_of, backward};
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
