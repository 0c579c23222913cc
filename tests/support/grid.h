// The covering grid: every way to split one small model that the sharded training step is checked on.
#pragma once
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/numerics.h"

namespace shardwise::testing {

/// How many query heads share a KV head, by name.
struct Heads {
  const char* name;
  int64_t query, kv;
};

/// What model, on what batch: a reference serves all ways to split it.
struct Problem {
  Heads heads;
  int64_t vocab, sequence, ffn;
  double dropout;
  bool is_tied;

  /// Two layers; biases in half of the problems, Llama 3's rotary scaling in two of the five head counts.
  model::Config config() const;
  uint64_t seed() const;
  std::string name() const;
};

struct Way {
  Stream stream;
  Path path;
  std::string name() const;
};

inline constexpr int64_t kBatch = 2;

/// MHA, GQA, more ranks than KV heads, MQA, 6 query and 3 KV heads × vocabulary 17, 127 × sequence divisible
/// by `ranks`, not divisible, shorter (where there are such) × ffn 32, 101 × dropout 0, 0.1 × tied, untied.
std::vector<Problem> problems(int ranks);

/// TP, TP+SP × in place, kept, gathered again.
std::vector<Way> ways();

/// How far one of a sharded step's results (numerics.h, or kReplicas) is from the reference's, and may be:
/// ‖a−b‖/‖b‖, or ‖a−b‖ where b is zero by its formula.
struct Distance {
  std::string what;
  double error, bound;
};
inline constexpr const char* kReplicas = "replicas";  // ranks that hold other bits than the owner

/// What one problem needs, made once per dtype.
struct Prepared {
  Problem problem;
  Tensors weights;  // of the model, in its dtype
  Batch batch;
  kernels::RandomKey key;
  ReferenceResult expected;  // fp64, from the same weights
  Spread spread;             // empty for fp64, where the bound is 1e-10
};
Prepared prepare(const Problem& problem, at::ScalarType dtype);

/// Collective: trains one step of `prepared` split over `group` and compares loss, gradients and the input's;
/// each rank returns its share of the comparisons.
std::vector<Distance> distances(const Prepared& prepared, const Way& way, const comm::Group& group,
                                Board& board);

}  // namespace shardwise::testing
