// The inner loops of attention: one KV head and the query heads that share it, all in the accumulator's type.
//
// Forward takes 64 queries at a time with all the keys they may see; backward takes 64 keys at a time with
// all the queries that may see them, transposed, so that no block of probabilities is ever turned around.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// [heads, s, d], the d elements of a row contiguous.
template <class T>
struct HeadRows {
  T* data;
  int64_t head, row;  // strides
};

struct AttentionExtent {
  int64_t heads;  // query heads
  int64_t s, d;
  double scale;  // of q·k
  bool causal;
};

template <class T>
struct AttentionLoops {
  using A = Accumulator<T>;
  /// Elements of scratch that each needs.
  int64_t (*forward_scratch)(AttentionExtent extent);
  int64_t (*backward_scratch)(AttentionExtent extent);
  /// `lse` [heads, s]; k and v have one head.
  void (*forward)(HeadRows<T> out, A* lse, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                  A* scratch, AttentionExtent extent);
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
SHARDWISE_PER_ISA(AttentionLoops, attention_loops)

}  // namespace shardwise::kernels
