// Live tensors in backward: those saved in forward that are not yet freed, and gradients in flight.
#include <algorithm>
#include <initializer_list>

#include "shardwise/plan/snapshots.h"
#include "shardwise/plan/transient_buffers.h"

namespace shardwise::plan {
namespace {

SavedAllocations without(SavedAllocations allocations, std::initializer_list<SavedTensor> freed) {
  std::erase_if(allocations, [&](const SavedAllocation& allocation) {
    return std::ranges::count(freed, allocation.tensor) > 0;
  });
  return allocations;
}

/// Returns the tensors that the block's backward starts with. Full recomputation holds the block's input even
/// if backward does not read it.
SavedAllocations available(const Workload& workload, int rank, int64_t layer) {
  SavedAllocations allocations = read_by_block(workload, rank, layer);
  const SavedAllocation input = made_by_block(workload, rank, layer).front();
  const bool has_input = !allocations.empty() && allocations.front().tensor == input.tensor;
  if (workload.recompute == Recompute::full && !has_input) allocations.insert(allocations.begin(), input);
  return allocations;
}

class BlockBackward {
 public:
  BlockBackward(const Workload& workload, int rank, int64_t layer)
      : transient_(workload, rank),
        required_(required_by_block(workload, layer)),
        is_recomputed_(workload.recompute == Recompute::full),
        in_down_(available(workload, rank, layer)) {}

  MemorySnapshots snapshots() const {
    MemorySnapshots snapshots;
    append_mlp(snapshots);
    append_attention(snapshots);
    return snapshots;
  }

 private:
  const Sizes& sizes() const { return transient_.sizes(); }
  static void add(MemorySnapshots& snapshots, const RequiredGradients& layer, const char* name,
                  const SavedAllocations& saved, const Allocations& transient) {
    if (layer.any) snapshots.push_back({name, concat(named(saved), transient)});
  }

  void append_mlp(MemorySnapshots& snapshots) const {
    using enum SavedTensor;
    const SavedAllocations in_activation = without(in_down_, {down_input});
    const SavedAllocations in_mlp = without(in_activation, {gate_and_up, up}),
                           in_norm = without(in_mlp, {mlp_input});
    // Full recomputation holds the gradient of the block's output to the end.
    const bool keeps_residual = required_.norm2.input || is_recomputed_;
    const Allocations residual = transient_.residual_gradient(keeps_residual);
    const int64_t inner = sizes().inner_features(), ffn = sizes().shard().ffn;
    add(snapshots, required_.down, "down", in_down_,
        transient_.row_backward(ffn, required_.down, keeps_residual));
    add(snapshots, required_.activation, "activation", in_activation,
        concat(residual, {{"activation gradients", sizes().features(inner + ffn)}}));
    add(snapshots, required_.mlp, "mlp", in_mlp,
        concat(residual, transient_.column_backward(inner, required_.mlp)));
    add(snapshots, required_.norm2, "norm2", in_norm, concat(residual, transient_.norm_backward()));
  }

  void append_attention(MemorySnapshots& snapshots) const {
    using enum SavedTensor;
    const SavedAllocations in_out =
        without(in_down_, {down_input, gate_and_up, up, mlp_input, norm2_input, norm2_rstd, norm2_mean});
    const SavedAllocations in_qkv = without(in_out, {q, k, v, attention_output, attention_lse});
    const SavedAllocations in_norm = without(in_qkv, {qkv_input});
    const bool keeps_residual = required_.norm1.input;
    const Allocations output_gradient = transient_.residual_gradient(is_recomputed_, "block output gradient");
    const Allocations residual = concat(transient_.residual_gradient(keeps_residual), output_gradient);
    const int64_t qkv = sizes().qkv_features(), queries = sizes().query_features();
    add(snapshots, required_.out, "out", in_out,
        concat(output_gradient, transient_.row_backward(queries, required_.out, keeps_residual)));
    add(snapshots, required_.attention, "attention", in_out,
        concat(residual, {{"attention gradients", sizes().features(queries + 2 * qkv)}}));
    add(snapshots, required_.qkv, "qkv", in_qkv,
        concat(residual, transient_.column_backward(qkv, required_.qkv)));
    add(snapshots, required_.norm1, "norm1", in_norm, concat(residual, transient_.norm_backward()));
  }

  TransientBuffers transient_;
  RequiredByBlock required_;
  bool is_recomputed_;
  SavedAllocations in_down_;
};

}  // namespace

MemorySnapshots backward_snapshots(const Workload& workload, int rank, int64_t layer) {
  return BlockBackward(workload, rank, layer).snapshots();
}

MemorySnapshots head_backward_snapshots(const Workload& workload, int rank) {
  if (!required_by_head(workload).norm.any) return {};
  const Allocations saved = named(saved_by_head(workload, rank));
  return {{"norm", concat(saved, {{"norm input gradient", Sizes(workload, rank).local_hidden()}})}};
}

}  // namespace shardwise::plan
