// Contents of the grid's messages and the expected results of reductions, computed by a formula of message
// and index, without any code of the library.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/base/split.h"
#include "shardwise/comm/reduction.h"

namespace shardwise::testing {

/// The content of a test's messages. Elements and results are exact in every dtype.
struct Content {
  at::ScalarType dtype;
  comm::Reduce reduce;  // the reduction under test; sum if there is none
  int ranks;
};

/// Returns elements `range` of message `number`.
at::Tensor message(const Content& content, int number, base::Range range);
/// Returns elements `range` of the reduction of messages 0 to ranks − 1.
at::Tensor reduced_message(const Content& content, base::Range range);

}  // namespace shardwise::testing
