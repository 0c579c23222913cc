// Times products of square matrices over their size, next to arithmetic in registers.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"

namespace shardwise::bench {

/// A product of [n, n] and [n, n].
struct SquareMeasured {
  int64_t n;
  Measured product;
};

/// Times are those of the slowest rank; all ranks call at once.
struct SquaresMeasured {
  std::vector<SquareMeasured> sizes;
  Measured arithmetic;            // `arithmetic_operations` in registers
  int64_t arithmetic_operations;  // on one rank
  std::string instruction;        // of `arithmetic`
};

/// Called with how many repetitions are done.
using OnSquareProgress = std::function<void(int64_t done, int64_t repetitions)>;

/// Times y = x·wᵀ of every size in the same repetitions, for about `seconds` in total. Rank 0 calls
/// `on_progress`. Collective.
SquaresMeasured measure_squares(at::ScalarType dtype, const std::vector<int64_t>& sizes, double seconds,
                                const comm::Group& group, const OnSquareProgress& on_progress);

}  // namespace shardwise::bench
