// What the messages of the grid hold, and what they come to when they are reduced: numbers by a formula of
// message and index. No code of the rooms is asked.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/base/split.h"
#include "shardwise/comm/reduction.h"

namespace shardwise::testing {

/// Numbers and results are exact in every dtype that the reduction takes.
struct Content {
  at::ScalarType dtype;
  comm::Reduce reduce;  // what is to be done to them; sum where nothing is
  int ranks;
};

/// Elements `range` of message `number`.
at::Tensor message(const Content& content, int number, base::Range range);
/// Elements `range` of the reduction of messages 0 to ranks − 1.
at::Tensor reduced_message(const Content& content, base::Range range);

}  // namespace shardwise::testing
