// The inner loops of attention: one KV head and its query heads, computed in the accumulator's type.
//
// Forward processes 64 queries at a time with all keys that they attend to; that of bf16 by its dot products
// 32 queries with 256 keys. Backward processes 64 keys at a time with all queries that attend to them, with
// transposed blocks, so that no block of probabilities has to be transposed. Skips keys before the window of
// all 64 queries and queries beyond that of all 64 keys.
#pragma once
#include "shardwise/kernels/dropout_isa.h"

namespace shardwise::kernels {

/// A strided view of [heads, s, d]; the d elements of a row are contiguous.
template <class T>
struct HeadRows {
  T* data;
  int64_t head, row;  // strides
};

/// The dropout mask of probabilities, indexed by the unsharded model's [rows, keys] with one row per
/// sequence, head and query. A row is padded to full groups of kDropoutGroup draws.
struct ProbabilityMask {
  DropoutMask draws;    // threshold 0: no dropout
  double scale;         // factor of the probabilities that are kept
  uint64_t first_row;   // row of the first query of the first head
  uint64_t row_groups;  // groups per row
};

struct AttentionExtent {
  int64_t heads;      // query heads
  int64_t s, d;       // queries, head_dim
  int64_t past;       // keys before the first query's position; 0 in backward
  int64_t head_rows;  // stride between heads in lse and in the mask, in rows; at least s
  double scale;       // factor of q·k
  bool causal;
  int64_t window;  // number of keys that a query attends to, up to its own position; s without a window
  ProbabilityMask mask;
};

/// Defined in attention_forward_isa.cpp, and for bf16 with its dot products in attention_forward_tiles.cpp.
template <class T>
struct AttentionForwardLoops {
  using A = Accumulator<T>;
  /// Returns the elements of scratch that `forward` needs.
  int64_t (*scratch)(AttentionExtent extent);
  /// `lse` [heads, s]; k and v have one head.
  void (*forward)(HeadRows<T> out, A* lse, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                  A* scratch, AttentionExtent extent);
};
SHARDWISE_PER_ISA(AttentionForwardLoops, attention_forward_loops)

/// Defined in attention_backward_isa.cpp, and for bf16 with its dot products in attention_backward_tiles.cpp.
template <class T>
struct AttentionBackwardLoops {
  using A = Accumulator<T>;
  /// Returns the elements of scratch that `backward` needs.
  int64_t (*scratch)(AttentionExtent extent);
  struct Saved {
    HeadRows<const T> q, k, v, out;
    const A* lse;
  };
  struct Gradients {
    HeadRows<T> q, k, v;
  };
  void (*backward)(Gradients gradients, HeadRows<const T> d_out, Saved saved, A* scratch,
                   AttentionExtent extent);
};
SHARDWISE_PER_ISA(AttentionBackwardLoops, attention_backward_loops)

}  // namespace shardwise::kernels
