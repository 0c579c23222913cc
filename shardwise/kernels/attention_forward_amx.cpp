#include "shardwise/kernels/attention_forward_amx.h"

#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/tiles.h"

namespace shardwise::kernels::amx {
namespace {

/// Queries that are processed together, and keys or columns of two tiles of the other operand.
constexpr int64_t kPart = 32;
constexpr int64_t kHalf = 16;        // rows of a tile, and outputs of one
constexpr int64_t kTileWords = 256;  // of four bytes: two bf16 or one fp32
constexpr int64_t kTileStride = 64;  // bytes of a row
using Tile = MatrixView<float>;      // row(i) is the i-th tile

int64_t parts_of(int64_t count) {
  return (count + kPart - 1) / kPart;
}

/// Scratch memory: packed operands, and rows of scores and outputs.
struct TileScratch {
  int64_t d_parts, key_parts;
  Scratch<float> scratch;
  Tile k;  // [16 keys][32 columns]: row p of a tile has the columns 2p and 2p + 1 of 16 keys
  Tile v;  // [32 keys][16 columns]: row p has 16 columns of the keys 2p and 2p + 1
  Tile q;  // [16 queries][32 columns]
  Tile p;  // [16 queries][32 keys]
  MatrixView<float> scores, out;

  TileScratch(float* memory, const AttentionExtent& extent)
      : d_parts(parts_of(extent.d)),
        key_parts(parts_of(keys_of(extent))),
        scratch(memory),
        k(scratch.matrix(2 * key_parts * d_parts, kTileWords)),
        v(scratch.matrix(key_parts * 2 * d_parts, kTileWords)),
        q(scratch.matrix(2 * d_parts, kTileWords)),
        p(scratch.matrix(2 * key_parts, kTileWords)),
        scores(scratch.matrix(kPart, key_parts * kPart)),
        out(scratch.matrix(kPart, d_parts * kPart)) {}
};

__mmask16 first_of_16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0 : (1u << count) - 1);
}
__mmask32 first_of_32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

/// Packs the keys, 32 columns of 16 keys at a time, with zeros in padding.
void pack_keys(const TileScratch& use, HeadRows<const Bf16> k, int64_t keys, int64_t d) {
  for (int64_t block = 0; block < 2 * use.key_parts; ++block) {
    for (int64_t part = 0; part < use.d_parts; ++part) {
      auto* words = reinterpret_cast<uint32_t*>(use.k.row(block * use.d_parts + part));
      const __mmask32 columns = first_of_32(d - part * kPart);
      for (int64_t n = 0; n < kHalf; ++n) {
        const int64_t key = block * kHalf + n;
        alignas(64) uint32_t pairs[kHalf] = {};
        if (key < keys)
          _mm512_store_si512(pairs, _mm512_maskz_loadu_epi16(columns, k.data + key * k.row + part * kPart));
        for (int64_t pair = 0; pair < kHalf; ++pair) words[pair * kHalf + n] = pairs[pair];
      }
    }
  }
}

/// Packs the values, 16 columns of 32 keys at a time, with zeros in padding.
void pack_values(const TileScratch& use, HeadRows<const Bf16> v, int64_t keys, int64_t d) {
  const auto row = [&](int64_t key, int64_t column) {
    if (key >= keys) return _mm512_setzero_si512();
    const __m256i values = _mm256_maskz_loadu_epi16(first_of_16(d - column), v.data + key * v.row + column);
    return _mm512_cvtepu16_epi32(values);
  };
  for (int64_t part = 0; part < use.key_parts; ++part) {
    for (int64_t block = 0; block < 2 * use.d_parts; ++block) {
      float* words = use.v.row(part * 2 * use.d_parts + block);
      for (int64_t pair = 0; pair < kHalf; ++pair, words += kHalf) {
        const int64_t key = part * kPart + 2 * pair, column = block * kHalf;
        _mm512_storeu_si512(words,
                            _mm512_or_si512(row(key, column), _mm512_slli_epi32(row(key + 1, column), 16)));
      }
    }
  }
}

void pack_queries(const TileScratch& use, const Bf16* q, int64_t q_stride, int64_t rows, int64_t d) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t part = 0; part < use.d_parts; ++part)
      _mm512_storeu_si512(
          use.q.row(i / kHalf * use.d_parts + part) + i % kHalf * kHalf,
          _mm512_maskz_loadu_epi16(first_of_32(d - part * kPart), q + i * q_stride + part * kPart));
  }
}

/// Two tiles beside each other and two below them.
void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
void add_product(const float* upper, const float* lower, const float* left, const float* right) {
  _tile_loadd(4, upper, kTileStride);
  _tile_loadd(6, left, kTileStride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right, kTileStride);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, lower, kTileStride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
void store_tiles(MatrixView<float> to) {
  const int64_t stride = to.stride * int64_t{sizeof(float)};
  _tile_stored(0, to.row(0), stride);
  _tile_stored(1, to.row(0) + kHalf, stride);
  _tile_stored(2, to.row(kHalf), stride);
  _tile_stored(3, to.row(kHalf) + kHalf, stride);
}

/// Computes the scores of 32 queries with `parts` times 32 keys from `first_part` on.
void multiply_keys(const TileScratch& use, int64_t first_part, int64_t parts) {
  write_to_memory(use.q.data);
  for (int64_t part = 0; part < parts; ++part) {
    const Tile left = use.k.from(2 * (first_part + part) * use.d_parts), right = left.from(use.d_parts);
    zero_tiles();
    for (int64_t i = 0; i < use.d_parts; ++i)
      add_product(use.q.row(i), use.q.row(use.d_parts + i), left.row(i), right.row(i));
    store_tiles(use.scores.from(0, part * kPart));
  }
}

/// Computes the outputs of 32 queries from their probabilities of `parts` times 32 keys.
void multiply_values(const TileScratch& use, int64_t first_part, int64_t parts) {
  write_to_memory(use.p.data);
  for (int64_t column = 0; column < use.d_parts; ++column) {
    zero_tiles();
    for (int64_t part = 0; part < parts; ++part) {
      const Tile v = use.v.from((first_part + part) * 2 * use.d_parts + 2 * column);
      add_product(use.p.row(part), use.p.row(parts + part), v.row(0), v.row(1));
    }
    store_tiles(use.out.from(0, column * kPart));
  }
}

/// Rounds a query's probabilities to bf16, and moves them into tiles.
void pack_probabilities(const TileScratch& use, int64_t query, int64_t parts) {
  const float* p = use.scores.row(query);
  for (int64_t part = 0; part < parts; ++part, p += kPart) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + kHalf), _mm512_loadu_ps(p));
    _mm512_storeu_si512(use.p.row(query / kHalf * parts + part) + query % kHalf * kHalf,
                        reinterpret_cast<__m512i>(both));
  }
}

/// Processes a block of queries with all keys that any of them attends to, as forward_block of
/// attention_forward_isa.cpp.
void forward_block(const TileScratch& use, IndexRange queries, HeadRows<Bf16> out, float* lse, uint64_t row,
                   const AttentionExtent& extent) {
  static_assert(kPart % kDropoutGroup == 0);
  const int64_t rows = queries.size();
  const int64_t first_part = attended_keys(queries.begin, extent).begin / kPart,
                first_key = first_part * kPart;
  const int64_t keys = attended_keys(queries.end - 1, extent).end - first_key, parts = parts_of(keys);
  const bool drops = extent.mask.draws.threshold > 0;
  multiply_keys(use, first_part, parts);
  float inverse[kPart];
  for (int64_t i = 0; i < rows; ++i) {
    float* scores = use.scores.row(i);
    const IndexRange attended = attended_keys(queries.begin + i, extent);
    const RowSums<float> sums = exp_row(scores, {attended.begin - first_key, attended.end - first_key}, keys,
                                        static_cast<float>(extent.scale));
    if (drops) drop_row(scores, first_key, keys, row + i, extent.mask);
    for (int64_t j = padded<float>(keys); j < parts * kPart; ++j) scores[j] = 0;
    pack_probabilities(use, i, parts);
    inverse[i] = (drops ? static_cast<float>(extent.mask.scale) : 1.0F) / sums.sum;
    lse[i] = sums.lse;
  }
  multiply_values(use, first_part, parts);
  for (int64_t i = 0; i < rows; ++i) narrow_row(out.data + i * out.row, use.out.row(i), inverse[i], extent.d);
}

void forward(HeadRows<Bf16> out, float* lse, HeadRows<const Bf16> q, HeadRows<const Bf16> k,
             HeadRows<const Bf16> v, float* memory, AttentionExtent extent) {
  const Tiles configured;
  const TileScratch use(memory, extent);
  pack_keys(use, k, keys_of(extent), extent.d);
  pack_values(use, v, keys_of(extent), extent.d);
  for (int64_t head = 0; head < extent.heads; ++head) {
    for (int64_t first = 0; first < extent.s; first += kPart) {
      const IndexRange queries = {first, smaller(first + kPart, extent.s)};
      const int64_t row = head * extent.head_rows + first;
      pack_queries(use, q.data + head * q.head + first * q.row, q.row, queries.size(), extent.d);
      forward_block(use, queries,
                    HeadRows<Bf16>{out.data + head * out.head + first * out.row, out.head, out.row},
                    lse + row, extent.mask.first_row + row, extent);
    }
  }
}

int64_t scratch_of(AttentionExtent extent) {
  return TileScratch(nullptr, extent).scratch.used();
}

}  // namespace

AttentionForwardLoops<Bf16> attention_forward_loops() {
  return {scratch_of, forward};
}

}  // namespace shardwise::kernels::amx
