// Times products of a few or many rows with weights of a model's shapes, next to reading the weight once and
// to arithmetic in registers.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"
#include "shardwise/quant/format.h"

namespace shardwise::bench {

/// One rank's shard of a weight [outputs, inputs].
struct WeightShape {
  std::string name;  // for output
  int64_t outputs, inputs;
};

/// How a weight is stored, and the dtype of the rows that it multiplies.
struct WeightFormat {
  std::string name;  // for output
  at::ScalarType dtype;
  std::optional<quant::Format> quantized = std::nullopt;
};

/// More bytes than caches hold.
inline constexpr int64_t kBeyondCaches = int64_t{256} << 20;

struct ProductBench {
  std::vector<WeightShape> shapes;
  std::vector<WeightFormat> formats;
  std::vector<int64_t> rows;
  double seconds;                         // per weight
  int64_t bytes_in_turn = kBeyondCaches;  // at least those of all equal weights that calls use in turn
};

/// The product of a number of rows with one weight.
struct RowsMeasured {
  int64_t rows;
  std::string code;  // what computed it: parallel::product_name
  Measured product;
};

/// One weight. Times are those of a call on the slowest rank; all ranks call at once.
struct WeightMeasured {
  WeightShape shape;
  std::string format;
  int64_t bytes;                  // of one rank's shard
  Measured read;                  // reading these bytes
  Measured arithmetic;            // `arithmetic_operations` in registers
  int64_t arithmetic_operations;  // on one rank
  std::string instruction;        // of `arithmetic`
  std::vector<RowsMeasured> rows;
};

/// Called with the number of weights and of this weight's repetitions that are done.
using OnWeightProgress = std::function<void(size_t weights, int64_t done, int64_t repetitions)>;

/// Times every format of every shape. Every call uses the next of several equal weights. Rank 0 calls
/// `on_progress`. Collective.
std::vector<WeightMeasured> measure_products(const ProductBench& bench, const comm::Group& group,
                                             const OnWeightProgress& on_progress);

}  // namespace shardwise::bench
