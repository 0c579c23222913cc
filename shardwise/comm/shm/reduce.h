// Reductions over the ranks' buffers, element by element in rank order; the instruction set is chosen at run
// time.
#pragma once
#include <c10/core/ScalarType.h>

#include "shardwise/comm/shm/reduce_isa.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm::shm {

/// targets[*][i] = reduction over r of sources[r][i]. bf16 and fp16 are accumulated in fp32 (an average
/// divided there) and rounded once, to nearest even; integers wrap; a NaN stays one, in min and max too; bool
/// takes any byte but zero for true and stores 0 or 1. The result (a NaN's payload apart) does not depend on
/// the instruction set or the cut of a message. Errors: c10::ValueError for another dtype, or one that the
/// operation does not take.
ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce reduce);

}  // namespace shardwise::comm::shm
