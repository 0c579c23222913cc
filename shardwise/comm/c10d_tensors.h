// How the tensors of a c10d call are passed to a CollectiveBackend, which reduces real numbers in tensors
// that share no memory.
#pragma once
#include "shardwise/comm/collective_backend.h"

namespace shardwise::comm {

/// Returns a view of real numbers if `x` is complex, else `x`. Errors: c10::ValueError naming `call` if `x`
/// is complex and `reduce` is neither sum nor average, which apply to both parts alike.
at::Tensor as_real(const at::Tensor& x, Reduce reduce, const char* call);
CollectiveBackend::Tensors as_real(const CollectiveBackend::Tensors& tensors, Reduce reduce,
                                   const char* call);

/// Returns `tensors`, or copies of all if two may share memory: what is written to one must not be read as
/// another. copy_back (tensor_lists.h) writes the results to the tensors.
CollectiveBackend::Tensors without_overlap(const CollectiveBackend::Tensors& tensors);

}  // namespace shardwise::comm
