// The experts of a rank and the rows that reach them, if every expert is chosen equally often.
//
// Experts are split over ep consecutive ranks and by nothing else: under TP+SP each rank sends the tokens of
// its part of the sequence. So the ranks of ep may be those of tp, of cp, of dp, or of several of them.
#pragma once
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {

struct ExpertShard {
  int64_t experts;    // that the rank holds
  int64_t rows;       // that the rank sends, and that its experts process together
  int64_t sent_rows;  // of these, to other ranks
};

/// Returns rank 0's share; it holds as many experts as any. The workload's blocks must have experts.
inline ExpertShard expert_shard(const Workload& workload) {
  const config::Experts& experts = *workload.config.experts;
  const int64_t rows = rank_shard(workload, /*rank=*/0).residual_rows * experts.per_token;
  return {parts_of(experts.count, workload.ep), rows, rows * (workload.ep - 1) / workload.ep};
}

}  // namespace shardwise::plan
