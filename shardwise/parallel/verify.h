// The debug check that values which should be equal on all ranks are.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// Compares `x` bit for bit with rank 0's when step.verify is on; nothing otherwise. Collective.
/// Errors: c10::Error on every rank, naming `what` and how many ranks differ.
void verify_equal(const at::Tensor& x, const char* what, const Step& step);

}  // namespace shardwise::parallel
