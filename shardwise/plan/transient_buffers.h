// Short-lived buffers of one rank's GEMMs and norms in forward and backward.
#pragma once
#include "shardwise/plan/memory.h"
#include "shardwise/plan/required_gradients.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {

class TransientBuffers {
 public:
  TransientBuffers(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  const Sizes& sizes() const { return sizes_; }

  /// A row-parallel layer's partial sum and, under TP+SP, the rank's rows of the reduced output.
  Allocations row_forward() const;
  /// The reduced output of a row-parallel layer until it is added to the residual stream.
  Allocations reduced_output() const;

  /// The reduced gradient of a column-parallel layer's input.
  Allocations reduced_gradient() const;
  /// The gradients of a norm's output and input.
  Allocations norm_backward() const;
  /// Backward of a column-parallel layer, h → `out` features. dX is a partial sum until it is reduced.
  Allocations column_backward(int64_t out, const RequiredGradients& required) const;
  /// A chunk's logits and gradients in the loss: h → `vocab` features.
  Allocations loss_chunk(int64_t vocab, const RequiredGradients& required) const;
  /// The gradient of the loss's input while it is reduced.
  Allocations loss_gradient(const RequiredGradients& required) const;
  /// Backward of a row-parallel layer, `in` → h features. `keeps_residual`: the residual stream's gradient is
  /// needed afterward.
  Allocations row_backward(int64_t in, const RequiredGradients& required, bool keeps_residual) const;
  /// The residual stream's gradient, or 0 bytes if it is not needed afterward.
  Allocations residual_gradient(bool is_kept, std::string_view name = "residual stream gradient") const;

 private:
  bool is_sequence_sharded() const { return workload_.tp > 1 && workload_.parallelism == Parallelism::tp_sp; }
  /// The most rows of one matrix: all, or those of a run of ranks under TP+SP (base/weight_gradient_rows.h).
  int64_t largest_rows() const;
  /// A copy of the rows of several ranks that are read in place, if runs have several.
  Allocation copied_rows(bool is_needed) const;
  /// Returns the bytes of the operand copies of a 16-bit model's weight gradient [out, in] of `rows` rows.
  int64_t wgrad_operands(int64_t rows, int64_t out, int64_t in) const;

  const Workload& workload_;
  Sizes sizes_;
};

/// Returns `allocations` followed by `more`.
Allocations concat(Allocations allocations, const Allocations& more);

}  // namespace shardwise::plan
