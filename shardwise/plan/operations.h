// The arithmetic of a training step: floating-point operations and bytes moved, operation by operation.
//
// A multiplication and an addition are two operations. Only products and attention's are counted, as in
// published formulas (Narayanan et al. 2021, arXiv 2104.04473, appendix); the elementwise operations have
// bytes alone.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// The keys that are counted for a query. Published figures differ in this, by up to two in attention.
enum class CountedKeys {
  all,      // of the sequence, as if no key were masked
  visible,  // half of them, or those in the sliding window, which a causal kernel computes
};

/// What one pass over an operation takes.
struct Pass {
  double flop = 0;    // floating-point operations
  int64_t bytes = 0;  // read and written, each tensor once
  /// Adds another pass.
  Pass& operator+=(const Pass& other);
};

/// An operation of a block or the head on one rank.
struct Operation {
  /// Arithmetic or memory traffic limits products and attention, memory traffic alone the others.
  enum class Kind { product, attention, elementwise };
  std::string name;      // as in --profile
  Kind kind;             // which of the processor's limits applies
  Pass forward;          // of the forward pass
  Pass input_gradient;   // dgrad; zero if the gradient is not required
  Pass weight_gradient;  // wgrad; zero for operations without weights, and if they are frozen
  Pass recomputed;       // what backward repeats of the forward, which is not the model's own arithmetic
  int64_t weight_elements = 0;  // of a product's weights
  int64_t count = 1;            // of equal products that one call computes, such as those of experts
};
/// Operations in the order of the forward.
using Operations = std::vector<Operation>;

/// Returns the operations of a block. Attention's backward computes the scores again in any case.
Operations block_operations(const Workload& workload, int rank, int64_t layer, CountedKeys keys);
/// Returns those of a block's MLP, without the norm before it.
Operations mlp_operations(const Workload& workload, int rank, int64_t layer);
/// Returns the operations of the embedding.
Operations embedding_operations(const Workload& workload, int rank);
/// Returns the operations of final norm, head and loss.
Operations head_operations(const Workload& workload, int rank);
/// Returns the operations of a micro-batch, as far as the workload's stage has them.
Operations micro_batch_operations(const Workload& workload, int rank, CountedKeys keys);

/// The sums over operations that utilization is computed from.
struct StepFlop {
  double model = 0;     // forward and both gradients: of model FLOP utilization (MFU)
  double hardware = 0;  // and what is recomputed: of hardware FLOP utilization (HFU)
};
/// Returns the sum.
StepFlop operator+(const StepFlop& a, const StepFlop& b);
/// Returns the sums over `operations`.
StepFlop flop_of(const Operations& operations);

}  // namespace shardwise::plan
