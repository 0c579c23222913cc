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
        required_(workload.required_by_block(layer)),
        is_recomputed_(workload.recompute == Recompute::full),
        in_down_(available(workload, rank, layer)),
        saved_(named(saved_by_block(workload, rank, layer))) {}

  /// The points of the block's backward in their order. `with_down`: what is live until the down projection's
  /// backward, too.
  MemorySnapshots mlp(const Allocations& with_down = {}) const {
    using enum SavedTensor;
    const SavedAllocations in_activation = without(in_down_, {down_input});
    const SavedAllocations in_mlp = without(in_activation, {gate_and_up, up});
    const Allocations residual = transient_.residual_gradient(keeps_mlp_residual());
    const int64_t inner = sizes().inner_features(), ffn = sizes().shard().ffn;
    MemorySnapshots snapshots;
    add(snapshots, required_.down, "down", in_down_,
        concat(with_down, transient_.row_backward(ffn, required_.down, keeps_mlp_residual())));
    add(snapshots, required_.activation, "activation", in_activation,
        concat(residual, {{"activation gradients", sizes().features(inner + ffn)}}));
    add(snapshots, required_.mlp, "mlp", in_mlp,
        concat(residual, transient_.column_backward(inner, required_.mlp)));
    return snapshots;
  }
  MemorySnapshots norm2() const {
    MemorySnapshots snapshots;
    add(snapshots, required_.norm2, "norm2", in_norm2(),
        concat(transient_.residual_gradient(keeps_mlp_residual()), transient_.norm_backward()));
    return snapshots;
  }
  MemorySnapshots attention() const {
    using enum SavedTensor;
    const SavedAllocations in_qkv = without(in_out(), {q, k, v, attention_output, attention_lse});
    const Allocations residual = attention_residual();
    const int64_t qkv = sizes().qkv_features(), queries = sizes().query_features();
    MemorySnapshots snapshots;
    add(snapshots, required_.out, "out", in_out(),
        concat(output_gradient(), transient_.row_backward(queries, required_.out, required_.norm1.input)));
    add(snapshots, required_.attention, "attention", in_out(),
        concat(residual, {{"attention gradients", sizes().features(queries + 2 * qkv)}}));
    add(snapshots, required_.qkv, "qkv", in_qkv,
        concat(residual, transient_.column_backward(qkv, required_.qkv)));
    return snapshots;
  }
  MemorySnapshots norm1() const {
    MemorySnapshots snapshots;
    add(snapshots, required_.norm1, "norm1", in_norm1(),
        concat(attention_residual(), transient_.norm_backward()));
    return snapshots;
  }

  /// What is live of a half of the batch while the other half is computed: before its backward, and with the
  /// gradient of the MLP's or of attention's input in flight.
  Allocations before() const { return concat(saved_, transient_.residual_gradient(keeps_mlp_residual())); }
  Allocations after_mlp() const {
    return concat(concat(named(in_norm2()), transient_.residual_gradient(keeps_mlp_residual())),
                  in_flight(required_.mlp));
  }
  Allocations after_attention() const {
    return concat(concat(named(in_norm1()), attention_residual()), in_flight(required_.qkv));
  }
  Allocations output_gradient_of_half() const {
    return transient_.residual_gradient(true, "gradient of a half's output");
  }

 private:
  const Sizes& sizes() const { return transient_.sizes(); }
  static void add(MemorySnapshots& snapshots, const RequiredGradients& layer, const char* name,
                  const SavedAllocations& saved, const Allocations& transient) {
    if (layer.any) snapshots.push_back({name, concat(named(saved), transient)});
  }

  SavedAllocations in_norm2() const {
    using enum SavedTensor;
    return without(in_down_, {down_input, gate_and_up, up, mlp_input});
  }
  SavedAllocations in_out() const {
    using enum SavedTensor;
    return without(in_norm2(), {norm2_input, norm2_rstd, norm2_mean});
  }
  SavedAllocations in_norm1() const {
    using enum SavedTensor;
    return without(in_out(), {q, k, v, attention_output, attention_lse, qkv_input});
  }

  /// Full recomputation holds the gradient of the block's output to the end.
  bool keeps_mlp_residual() const { return required_.norm2.input || is_recomputed_; }
  Allocations output_gradient() const {
    return transient_.residual_gradient(is_recomputed_, "block output gradient");
  }
  Allocations attention_residual() const {
    return concat(transient_.residual_gradient(required_.norm1.input), output_gradient());
  }
  Allocations in_flight(const RequiredGradients& product) const {
    if (!product.input) return {};
    return transient_.reduced_gradient();
  }

  TransientBuffers transient_;
  RequiredByBlock required_;
  bool is_recomputed_;
  SavedAllocations in_down_;
  Allocations saved_;
};

/// The two halves in turn, in the order of nn/split_batch.h, which is that of the forward reversed. The
/// gradient of the last block's output is one tensor of both halves, of which each half first takes a copy.
/// It is freed when both residual streams have been added to.
MemorySnapshots split_backward(const Workload& workload, int rank, int64_t layer) {
  const bool is_last = layer == workload.config.num_hidden_layers - 1;
  const Workload halves[] = {workload.half_batch(0), workload.half_batch(1)};
  const BlockBackward first(halves[0], rank, layer), second(halves[1], rank, layer);
  const Allocations of_first = is_last ? first.output_gradient_of_half() : Allocations{},
                    of_second = is_last ? second.output_gradient_of_half() : Allocations{};
  MemorySnapshots snapshots;
  append(snapshots, second.mlp(of_second), concat(first.before(), of_first));
  append(snapshots, first.mlp(of_first), second.after_mlp());
  append(snapshots, second.norm2(), first.after_mlp());
  append(snapshots, second.attention(), concat(first.after_mlp(), of_second));
  append(snapshots, first.norm2(), concat(second.after_attention(), of_second));
  append(snapshots, first.attention(), second.after_attention());
  append(snapshots, second.norm1(), first.after_attention());
  append(snapshots, first.norm1());
  return snapshots;
}

}  // namespace

MemorySnapshots backward_snapshots(const Workload& workload, int rank, int64_t layer) {
  if (workload.split_batch) return split_backward(workload, rank, layer);
  const BlockBackward block(workload, rank, layer);
  MemorySnapshots snapshots;
  append(snapshots, block.mlp());
  append(snapshots, block.norm2());
  append(snapshots, block.attention());
  append(snapshots, block.norm1());
  return snapshots;
}

MemorySnapshots head_backward_snapshots(const Workload& workload, int rank) {
  if (!workload.required_by_head().norm.any) return {};
  const Allocations saved = named(saved_by_head(workload, rank));
  return {{"norm", concat(saved, {{"norm input gradient", Sizes(workload, rank).local_hidden()}})}};
}

}  // namespace shardwise::plan
