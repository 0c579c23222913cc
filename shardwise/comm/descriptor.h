// The arguments of a collective that must be equal on all ranks, and their text in error messages.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shardwise/base/hash.h"
#include "shardwise/comm/counters.h"
#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

/// One rank's arguments of one collective, and the shards that it holds. All but the last two must be equal
/// on all ranks.
struct Descriptor {
  Op op = Op::barrier;
  int8_t dtype = 0;
  Reduce reduce = Reduce::sum;
  int32_t root_or_dim = 0;
  int64_t numel = 0;             // of the full message; 0 if no single rank knows it
  uint64_t split = 0;            // hash of the message's split
  uint64_t held_shards = 0;      // the PeerShards that the rank holds: their hashes, combined (docs/adr/0002)
  uint64_t offset = 0;           // of this rank's input in the symmetric heap, where peers read it
  bool is_unregistered = false;  // the input is outside the symmetric heap and not staged yet

  bool matches(const Descriptor& other) const {
    return is_same_call(other) && held_shards == other.held_shards;
  }
  bool is_same_call(const Descriptor& other) const {
    return op == other.op && dtype == other.dtype && reduce == other.reduce &&
           root_or_dim == other.root_or_dim && numel == other.numel && split == other.split;
  }
};

/// Returns the tag of part `part` of the group's asynchronous operation `number`, which its descriptor's
/// split holds: several alike may be in flight. It differs from the tags of all other parts and from 0, the
/// tag of a synchronous collective.
constexpr uint64_t operation_tag(uint64_t number, uint64_t part) {
  return base::mix(base::mix(base::kHashBegin, number), part);
}

/// Returns the descriptor of a collective on `x`, without its split.
Descriptor descriptor_of(Op op, const at::Tensor& x, int64_t numel, int64_t root_or_dim = 0);
/// Returns the descriptor of a collective on one piece per rank, whose sizes all ranks know.
Descriptor descriptor_of(Op op, const at::Tensor& x, const std::vector<at::Tensor>& pieces,
                         int64_t root_or_dim = 0);

/// Returns "all_reduce sum float32 [1024]", "broadcast int64 [3] root 0", "all_gather float32 [12] split
/// 3f09…", or, if each rank knows the size of its pieces only, "scatter float32 root 1".
std::string describe(const Descriptor& descriptor);
/// Returns text like "float32 [1024]".
std::string describe(int8_t dtype, int64_t numel);

}  // namespace shardwise::comm
