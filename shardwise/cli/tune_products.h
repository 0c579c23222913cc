// `shardwise bench products --tune`: measures which library computes fp32 products fastest, and saves it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/bench/products.h"

namespace shardwise::cli {

struct ProductTuning {
  std::string preset;  // for output
  std::vector<bench::WeightShape> shapes;
  std::vector<int64_t> rows;
  double seconds;  // per weight and number of rows
  bool json;
};

/// Measures, saves the choice for later runs and prints it on rank 0. This process keeps its choice.
/// Collective. Errors: base::FileError.
void tune_products(const ProductTuning& tuning, const comm::Group& group);

}  // namespace shardwise::cli
