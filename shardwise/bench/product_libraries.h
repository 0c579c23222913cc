// Times the fp32 products of a training step with each matrix library, to choose the faster one.
#pragma once
#include <string>
#include <vector>

#include "shardwise/bench/products.h"
#include "shardwise/bench/timing.h"
#include "shardwise/kernels/product_library.h"

namespace shardwise::bench {

/// A product with each of kernels::product_libraries(), on the slowest rank; all ranks call at once.
struct LibrariesMeasured {
  std::string weight;  // for output
  kernels::ProductShape shape;
  std::vector<Measured> libraries;

  /// Returns the library of the shortest median.
  kernels::ProductLibrary fastest() const;
};

/// Called with the number of pairs of a weight and a number of rows, and of this pair's repetitions, that are
/// done.
using OnLibrariesProgress = std::function<void(size_t pairs, int64_t done, int64_t repetitions)>;

/// Times every form of every pair of a weight and a number of rows for about `seconds`, at least five
/// repetitions. Rank 0 calls `on_progress`. Collective.
std::vector<LibrariesMeasured> measure_libraries(const std::vector<WeightShape>& shapes,
                                                 const std::vector<int64_t>& rows, double seconds,
                                                 const comm::Group& group,
                                                 const OnLibrariesProgress& on_progress);

}  // namespace shardwise::bench
