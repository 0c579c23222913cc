// The collectives of one block, for tables: mode by mode, forward and backward, and what each rank sends.
#pragma once
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// The calls of one collective in a pass over a block.
struct BlockCollective {
  Parallelism parallelism = Parallelism::tp;  // the workload's: TP or TP+SP
  bool is_backward = false;                   // called in the backward pass, otherwise in the forward
  const char* name = "";                      // all_reduce, all_gather or reduce_scatter
  int64_t calls = 0;                          // on one rank
  std::vector<int64_t> bytes;                 // that each rank sends in all calls
};

/// Returns the collectives of the workload's first block in its mode, those that are not called left out.
/// Errors: those of Workload::validate.
std::vector<BlockCollective> block_collectives(const Workload& workload);

}  // namespace shardwise::plan
