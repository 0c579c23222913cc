// A stored model's tensors as the unsharded reference reads them.
#pragma once
#include "tests/support/reference.h"

namespace shardwise::testing {

/// Returns the weights among the `stored` tensors of a llama, phi3 or gpt2, in fp64 and by the names of
/// llama: what phi3 fuses is split, and what gpt2 transposes is transposed back.
Tensors reference_weights(const config::Config& config, const Tensors& stored);

}  // namespace shardwise::testing
