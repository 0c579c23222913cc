// How far a result may be from the exact one: docs/numerics.md as code.
#pragma once
#include <c10/core/ScalarType.h>

#include "shardwise/model/config.h"

namespace shardwise::testing {

/// Half the distance from 1 to the next number of the dtype: 2^−53, 2^−24, 2^−8.
double unit_roundoff(c10::ScalarType dtype);

/// Bound on ‖computed − exact‖ / ‖exact‖ of a sum (or inner product) of `length` terms whose values are
/// stored in `dtype` and added in fp32 (fp64 for fp64); docs/numerics.md §2.
double product_bound(int64_t length, c10::ScalarType dtype);

/// Bound on the relative error of one step's loss; docs/numerics.md §4.
double loss_bound(const model::Config& config, int64_t tokens, c10::ScalarType dtype);

/// Bound on the relative error of every gradient of one step; docs/numerics.md §4.
double gradient_bound(const model::Config& config, int64_t tokens, c10::ScalarType dtype);

}  // namespace shardwise::testing
