// What the ranks of a group must agree about in one collective, and how an error tells it.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shardwise/comm/counters.h"
#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

/// One rank's side of one collective. All but the last two must be equal on all ranks.
struct Descriptor {
  Op op = Op::barrier;
  int8_t dtype = 0;
  Reduce reduce = Reduce::sum;
  int32_t root_or_dim = 0;
  int64_t numel = 0;             // of the whole message; 0 where no rank knows it alone
  uint64_t split = 0;            // hash of how the message is cut
  uint64_t offset = 0;           // of this rank's input, where peers read it in shared memory
  bool is_unregistered = false;  // it lies elsewhere, and is not there yet

  bool matches(const Descriptor& other) const {
    return op == other.op && dtype == other.dtype && reduce == other.reduce &&
           root_or_dim == other.root_or_dim && numel == other.numel && split == other.split;
  }
};

/// Of all that a collective on `x` agrees about but the cut.
Descriptor descriptor_of(Op op, const at::Tensor& x, int64_t numel, int64_t root_or_dim = 0);
/// The same of pieces, one a rank, that all ranks know the sizes of.
Descriptor descriptor_of(Op op, const at::Tensor& x, const std::vector<at::Tensor>& pieces,
                         int64_t root_or_dim = 0);

/// "all_reduce sum float32 [1024]", "broadcast int64 [3] root 0", "all_gather float32 [12] split 3f09…";
/// without a size where ranks know their own pieces alone, "scatter float32 root 1".
std::string describe(const Descriptor& descriptor);
/// "float32 [1024]".
std::string describe(int8_t dtype, int64_t numel);

}  // namespace shardwise::comm
