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
/// another.
CollectiveBackend::Tensors without_overlap(const CollectiveBackend::Tensors& tensors);
/// Copies what without_overlap has copied back, in the order of the list; of shared memory the last remains.
void copy_to(const CollectiveBackend::Tensors& tensors, const CollectiveBackend::Tensors& copies);

}  // namespace shardwise::comm
