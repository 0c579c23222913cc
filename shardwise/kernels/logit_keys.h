// The order in which tokens are preferred, as integers: a device then finds a row's best tokens with any
// selection of the largest, and ties do not depend on it.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// A token of a row of logits.
struct KeyedLogit {
  int64_t index;  // in the row
  double logit;
};

/// Returns a key of each logit: the higher the logit, the higher the key, NaN highest; of equal logits (0 and
/// −0 are equal), the lower index has the higher key. For logits on a device other than the CPU. Shapes:
/// `logits` [n, v] → [n, v] int64. Errors: c10::ValueError if they are on the CPU, or of fp64.
at::Tensor logit_keys(const at::Tensor& logits);

/// Returns the logit that has this key.
KeyedLogit logit_of_key(int64_t key);

}  // namespace shardwise::kernels
