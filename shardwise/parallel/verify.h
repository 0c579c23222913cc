// A debug check that a tensor is equal on all ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// Compares `x` bit for bit with rank 0's. Collective if step.verify is on; does nothing otherwise.
/// Errors: c10::Error on every rank if any rank differs; the message contains `what` and the number of
/// differing ranks.
void verify_equal(const at::Tensor& x, const char* what, const Step& step);

}  // namespace shardwise::parallel
