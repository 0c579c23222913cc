// Conversion between Reduce and c10d::ReduceOp.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

/// Converts a c10d reduction. Errors: c10::ValueError naming `backend` and `call` for PREMUL_SUM and UNUSED.
Reduce from_c10d(const c10d::ReduceOp& op, const std::string& backend, const char* call);
c10d::ReduceOp to_c10d(Reduce reduce);

}  // namespace shardwise::comm
