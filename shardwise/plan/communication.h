// What a rank sends in training: calls and bytes of every collective, counted as comm/counters.h counts them.
//
// Bytes are those sent per rank whatever the algorithm (docs/algorithms.md). A group of one sends nothing,
// and backward nothing for gradients that nobody wants (wanted.h). Tests compare with the counters of real
// runs, at 0 %.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  bool operator==(const Traffic&) const = default;
};

/// The three collectives that training uses.
struct Collectives {
  Traffic all_reduce, all_gather, reduce_scatter;
  Traffic total() const;
  bool operator==(const Collectives&) const = default;
};
Collectives operator+(const Collectives& a, const Collectives& b);
Collectives operator*(int64_t times, const Collectives& one);

/// A forward and its backward.
struct Passes {
  Collectives forward, backward;
  Collectives both() const { return forward + backward; }
};

Passes embedding_communication(const Workload& workload, int rank);
/// One decoder block: two crossings in, two out; under full recomputation its backward, where it has one,
/// also crosses in twice and out once, as its forward did; a batch in halves crosses twice as often. Blocks
/// differ in what of them is frozen.
Passes block_communication(const Workload& workload, int rank, int64_t layer);
/// Final norm, head and loss.
Passes head_communication(const Workload& workload, int rank);
/// A whole micro-batch: embedding, every block, head.
Passes micro_batch_communication(const Workload& workload, int rank);

/// Once per optimizer step: the gradients that are terms (parameters.h) in one all_reduce, and one element
/// for the norm.
Collectives optimizer_communication(const Workload& workload, int rank);

/// Elements in that all_reduce.
int64_t synchronized_elements(const Workload& workload);

}  // namespace shardwise::plan
