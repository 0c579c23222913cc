// The inner loops of attention: one KV head and the query heads that share it, all in the accumulator's type.
//
// Forward takes 64 queries at a time with all the keys they may see; backward takes 64 keys at a time with
// all the queries that may see them, transposed, so that no block of probabilities is ever turned around.
// Keys that lie before the window of all 64 queries, and queries beyond the window of all 64 keys, cost
// nothing.
#pragma once
#include "shardwise/kernels/dropout_isa.h"

namespace shardwise::kernels {

/// [heads, s, d], the d elements of a row contiguous.
template <class T>
struct HeadRows {
  T* data;
  int64_t head, row;  // strides
};

/// Which probabilities are kept, drawn for the whole model's [rows, keys], a row for each sequence, head and
/// query; a row has whole groups of kDropoutGroup draws.
struct ProbabilityMask {
  DropoutMask draws;   // threshold 0: all are kept
  double scale;        // of what is kept
  uint64_t first_row;  // of the first query of the first head
  uint64_t row_groups;
};

struct AttentionExtent {
  int64_t heads;      // query heads
  int64_t s, d;       // queries
  int64_t past;       // keys before that of the first query; backward knows none
  int64_t head_rows;  // from one head to the next, of lse and of the mask; at least s
  double scale;       // of q·k
  bool causal;
  int64_t window;  // a query sees itself and the keys before it, this many together; s without a window
  ProbabilityMask mask;
};

/// In attention_forward_isa.cpp.
template <class T>
struct AttentionForwardLoops {
  using A = Accumulator<T>;
  /// Elements of scratch that `forward` needs.
  int64_t (*scratch)(AttentionExtent extent);
  /// `lse` [heads, s]; k and v have one head.
  void (*forward)(HeadRows<T> out, A* lse, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                  A* scratch, AttentionExtent extent);
};
SHARDWISE_PER_ISA(AttentionForwardLoops, attention_forward_loops)

/// In attention_single_isa.cpp: one query, which reads every key and value once as they lie.
template <class T>
struct AttentionSingleLoops {
  using A = Accumulator<T>;
  /// Elements of scratch that `forward` needs.
  int64_t (*scratch)(AttentionExtent extent);
  /// Of one head's query: `out` and `q` [d], `lse` [1].
  void (*forward)(T* out, A* lse, const T* q, HeadRows<const T> k, HeadRows<const T> v, A* scratch,
                  AttentionExtent extent);
};
SHARDWISE_PER_ISA(AttentionSingleLoops, attention_single_loops)

/// In attention_backward_isa.cpp.
template <class T>
struct AttentionBackwardLoops {
  using A = Accumulator<T>;
  /// Elements of scratch that `backward` needs.
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
