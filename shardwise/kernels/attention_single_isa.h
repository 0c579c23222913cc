// The inner loops of attention with one query per head: the heads of a KV head together read its keys and
// values, block by block, without copying. Defined in attention_single_isa.cpp.
#pragma once
#include "shardwise/kernels/attention_isa.h"

namespace shardwise::kernels {

/// Rows of one KV head: of T, or of int8, each with the factor of its elements.
template <class S>
struct StoredRows {
  const S* data;
  int64_t row;          // stride
  const float* scales;  // [rows] of int8, otherwise null
};

/// What a block of keys adds to each head's query, a row per head: d elements Σ e^(score − largest) · value,
/// then `largest`, the block's largest score, and Σ e^(score − largest).
template <class A>
struct BlockRows {
  A* data;
  static int64_t stride(int64_t d) { return d + 2; }
};

struct SingleExtent {
  int64_t heads;  // query heads
  int64_t keys, d;
  double scale;  // factor of q·k
};

template <class T>
struct AttentionSingleLoops {
  using A = Accumulator<T>;
  /// Returns the elements of scratch that `attend` needs.
  int64_t (*scratch)(int64_t keys, int64_t d);
  /// Computes the rows of `parts` for one block of keys. `q` has one row per head.
  void (*attend)(BlockRows<A> parts, HeadRows<const T> q, StoredRows<T> k, StoredRows<T> v, A* scratch,
                 SingleExtent extent);
  void (*attend_int8)(BlockRows<A> parts, HeadRows<const T> q, StoredRows<int8_t> k, StoredRows<int8_t> v,
                      A* scratch, SingleExtent extent);
  /// Adds up the blocks of each head, in their order: `parts` [blocks, heads], whose first block is
  /// overwritten → `out` and `lse` [heads].
  void (*merge)(HeadRows<T> out, A* lse, BlockRows<A> parts, int64_t blocks, int64_t heads, int64_t d);
};
SHARDWISE_PER_ISA(AttentionSingleLoops, attention_single_loops)

}  // namespace shardwise::kernels
