// Live tensors in forward: those saved for backward, every value of a C++ expression until the expression
// ends, and a norm's output until the row-parallel output of its layers is reduced.
#include <set>

#include "shardwise/plan/snapshots.h"
#include "shardwise/plan/transient_buffers.h"

namespace shardwise::plan {
namespace {

using Tensors = std::set<SavedTensor>;

Tensors tensors_of(const SavedAllocations& allocations) {
  Tensors tensors;
  for (const SavedAllocation& allocation : allocations) tensors.insert(allocation.tensor);
  return tensors;
}

/// Returns the tensors up to `last` that are saved or held.
Allocations live(const SavedAllocations& made, SavedTensor last, const Tensors& saved, const Tensors& held) {
  SavedAllocations allocations;
  for (const SavedAllocation& allocation : made) {
    if (saved.contains(allocation.tensor) || held.contains(allocation.tensor))
      allocations.push_back(allocation);
    if (allocation.tensor == last) break;
  }
  return named(allocations);
}

Tensors saved_tensors(const Workload& workload, int rank, int64_t layer, ForwardRun run) {
  if (run == ForwardRun::recompute) return tensors_of(read_by_block(workload, rank, layer));
  if (workload.recompute == Recompute::full) return {};  // its input is held anyway
  return tensors_of(saved_by_block(workload, rank, layer));
}

class BlockForward {
 public:
  BlockForward(const Workload& workload, int rank, int64_t layer, ForwardRun run)
      : transient_(workload, rank),
        made_(made_by_block(workload, rank, layer)),
        saved_(saved_tensors(workload, rank, layer, run)),
        has_qk_norm_(workload.config.qk_norm),
        holds_input_(run == ForwardRun::recompute || workload.recompute == Recompute::full),
        run_(run) {}

  MemorySnapshots attention() const {
    using enum SavedTensor;
    return {
        snapshot("attention core",
                 {attention_until(attention_lse, {q, k, v, attention_output, attention_lse}),
                  {{"normalized q and k", normalized_bytes()}}}),
        snapshot("out", {attention_until(attention_lse, {attention_output}), transient_.row_forward()}),
        snapshot("attention reduced", {attention_until(norm2_input, {attention_output, norm2_input}),
                                       transient_.reduced_output()}),
    };
  }

  MemorySnapshots mlp() const {
    using enum SavedTensor;
    // Recomputation discards the output of the last GEMM: it is neither reduced nor masked.
    const bool is_used = run_ == ForwardRun::first;
    const Allocations discarded = {{"discarded output", sizes().local_hidden()}};
    return {
        snapshot("down", {mlp_until_down({gate_and_up, up, down_input}),
                          is_used ? transient_.row_forward() : discarded}),
        snapshot("mlp reduced", {mlp_until_down({}),
                                 is_used ? transient_.reduced_output() : discarded,
                                 {{"block output", sizes().local_hidden()}}}),
    };
  }

  /// What is live of a half of the batch while the other half is computed: before the block, and with the
  /// output of attention or of the MLP in flight.
  Allocations before() const {
    return live(made_, SavedTensor::norm1_input, saved_, {SavedTensor::norm1_input});
  }
  Allocations after_attention() const {
    return concat(live(made_, SavedTensor::attention_lse, saved_, {SavedTensor::norm1_input}),
                  transient_.reduced_output());
  }
  Allocations after_mlp() const {
    return concat(live(made_, SavedTensor::down_input, saved_, {SavedTensor::norm2_input}),
                  transient_.reduced_output());
  }

 private:
  const Sizes& sizes() const { return transient_.sizes(); }
  int64_t normalized_bytes() const {
    return has_qk_norm_ ? sizes().features(sizes().query_features() + sizes().key_features()) : 0;
  }

  /// The GEMM output q|k|v is held; with q/k norm the allocations q, k and v are that output.
  Allocations attention_until(SavedTensor last, Tensors held) const {
    using enum SavedTensor;
    held.insert({norm1_input, qkv_input});
    if (has_qk_norm_) held.insert({q, k, v});
    const int64_t product = has_qk_norm_ ? 0 : sizes().features(sizes().qkv_features());
    return concat(live(made_, last, saved_, held), {{"q|k|v", product}});
  }
  Allocations mlp_until_down(Tensors held) const {
    using enum SavedTensor;
    held.insert({norm2_input, mlp_input});
    if (holds_input_) held.insert(norm1_input);
    return live(made_, down_input, saved_, held);
  }

  /// Recomputation also holds the gradient of the block's output.
  MemorySnapshot snapshot(const std::string& name, const std::vector<Allocations>& parts) const {
    MemorySnapshot snapshot{name + (run_ == ForwardRun::first ? ", forward" : ", recomputed"), {}};
    for (const Allocations& part : parts)
      snapshot.allocations = concat(std::move(snapshot.allocations), part);
    if (run_ == ForwardRun::recompute)
      snapshot.allocations.push_back({"block output gradient", sizes().local_hidden()});
    return snapshot;
  }

  TransientBuffers transient_;
  SavedAllocations made_;
  Tensors saved_;
  bool has_qk_norm_;
  bool holds_input_;  // for the whole block, not only until its first reduction
  ForwardRun run_;
};

/// The two halves in turn, in the order of nn/split_batch.h.
MemorySnapshots split_forward(const Workload& workload, int rank, int64_t layer, ForwardRun run) {
  const Workload halves[] = {workload.half_batch(0), workload.half_batch(1)};
  const BlockForward first(halves[0], rank, layer, run), second(halves[1], rank, layer, run);
  MemorySnapshots snapshots;
  append(snapshots, first.attention(), second.before());
  append(snapshots, second.attention(), first.after_attention());
  append(snapshots, first.mlp(), second.after_attention());
  append(snapshots, second.mlp(), first.after_mlp());
  return snapshots;
}

}  // namespace

MemorySnapshots forward_snapshots(const Workload& workload, int rank, int64_t layer, ForwardRun run) {
  if (workload.split_batch) return split_forward(workload, rank, layer, run);
  const BlockForward block(workload, rank, layer, run);
  MemorySnapshots snapshots = block.attention();
  append(snapshots, block.mlp());
  return snapshots;
}

MemorySnapshots head_forward_snapshots(const Workload& workload, int rank) {
  const TransientBuffers transient(workload, rank);
  SavedAllocations saved = saved_by_head(workload, rank);
  std::erase_if(saved, [](const auto& one) { return one.tensor == SavedTensor::head_gradient; });
  const RequiredGradients required = workload.required_by_head().head;
  const int64_t vocab = transient.sizes().shard().vocab;
  return {{"loss", concat(named(saved), transient.loss_chunk(vocab, required))},
          {"loss, gradient reduced", concat(named(saved), transient.loss_gradient(required))}};
}

}  // namespace shardwise::plan
