// Debug checks that what must be equal on several ranks is equal, bit for bit.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/parallel/gathered_rows.h"
#include "shardwise/parallel/parameter.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// Compares `x` bit for bit with rank 0's. Collective if step.verify is on; does nothing otherwise.
/// Errors: c10::Error on every rank if any rank differs; the message contains `what` and the number of
/// differing ranks. c10::ValueError if `x` is not on the CPU.
void verify_equal(const at::Tensor& x, const char* what, const Step& step);

/// Compares the gathered rows of all ranks like verify_equal. Where peers' shards are read in place, these
/// are the bits that this rank reads.
void verify_equal(const GatheredRows& rows, const char* what, const Step& step);

/// What replicas hold of a parameter.
enum class Held { weights, gradients };

/// Compares the weights or the main gradients of all replicas over the ranks that hold them: of replicated
/// parameters, and of slices that several ranks hold (replicas.h). The gradients must be synchronized
/// (gradient_sync.h). Collective. Cost: one all_gather of 8 bytes per replica, its hash.
/// Errors: c10::Error on every rank, naming the first parameter that differs and the two ranks.
void verify_replicas(const ParamSpecs& specs, Held held, const comm::Group& group);

/// Compares the weights or the summed main gradients of all parameters over the data-parallel ranks of
/// `group`, which hold the same shards. Otherwise as verify_replicas.
void verify_data_replicas(const ParamSpecs& specs, Held held, const comm::Group& group);

}  // namespace shardwise::parallel
