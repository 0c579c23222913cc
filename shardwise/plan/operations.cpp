#include "shardwise/plan/operations.h"

#include "shardwise/plan/required_gradients.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// Returns the number of query-key pairs of a head in one sequence.
double counted_pairs(const Workload& workload, int64_t layer, CountedKeys keys) {
  const auto s = static_cast<double>(workload.sequence_length);
  if (keys == CountedKeys::all) return s * s;
  const auto window =
      static_cast<double>(workload.config.window_of(layer).value_or(workload.sequence_length));
  return window >= s ? s * s / 2 : window * s - window * window / 2;
}

class OperationList {
 public:
  OperationList(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  const Sizes& sizes() const { return sizes_; }
  Operations take() { return std::move(list_); }

  /// Adds y = x·wᵀ of [rows, in] and [out, in].
  void product(const char* name, int64_t in, int64_t out, const RequiredGradients& required) {
    const int64_t rows = sizes_.shard().rows, weight = out * in;
    const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(weight);
    const int64_t activations = sizes_.features(in) + sizes_.features(out);
    const Pass pass{flop, activations + weight * workload_.element_bytes};
    const Pass wgrad{flop, activations + 2 * weight * workload_.accumulator_bytes()};
    list_.push_back({name, Operation::Kind::product, pass, when(required.input, pass),
                     when(required.weight, wgrad), when(recomputes(), pass), weight});
  }

  /// Adds the two products of attention; backward has four, and computes the scores again.
  void attention(int64_t layer, CountedKeys keys, bool has_backward) {
    const auto features = static_cast<double>(sizes_.query_features());
    const double product =
        2 * features * counted_pairs(workload_, layer, keys) * static_cast<double>(workload_.batch_size);
    const int64_t moved = sizes_.features(sizes_.query_features() + sizes_.qkv_features());
    Pass repeated{product, 0};
    if (recomputes()) repeated += {2 * product, moved};
    list_.push_back({"attention",
                     Operation::Kind::attention,
                     {2 * product, moved},
                     when(has_backward, {4 * product, 2 * moved}),
                     {},
                     when(has_backward, repeated),
                     /*weight_elements=*/0});
  }

  /// Adds an operation that reads and writes `forward` bytes, and `backward` bytes for its gradients.
  void elementwise(const char* name, int64_t forward, int64_t backward, bool has_backward,
                   bool is_recomputed) {
    list_.push_back({name,
                     Operation::Kind::elementwise,
                     {0, forward},
                     when(has_backward, {0, backward}),
                     {},
                     when(is_recomputed && has_backward, {0, forward}),
                     /*weight_elements=*/0});
  }

  bool recomputes() const { return workload_.recompute == Recompute::full; }

 private:
  static Pass when(bool happens, const Pass& pass) { return happens ? pass : Pass{}; }

  const Workload& workload_;
  Sizes sizes_;
  Operations list_;
};

/// The sum of residual stream and a layer's output, and its norm: two tensors in, two out; backward reads the
/// sum and two gradients and writes one.
void add_norm(OperationList& list, bool has_backward) {
  const int64_t hidden = list.sizes().local_hidden();
  list.elementwise("add_rms_norm", 4 * hidden, 4 * hidden, has_backward, list.recomputes());
}

void append(Operations& all, Operations more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Pass& Pass::operator+=(const Pass& other) {
  flop += other.flop;
  bytes += other.bytes;
  return *this;
}

Operations block_operations(const Workload& workload, int rank, int64_t layer, CountedKeys keys) {
  OperationList list(workload, rank);
  const Sizes& sizes = list.sizes();
  const RequiredByBlock required = required_by_block(workload, layer);
  const int64_t h = workload.config.hidden_size, queries = sizes.query_features(), ffn = sizes.shard().ffn;
  const bool is_gated = workload.config.is_gated();
  add_norm(list, required.norm1.any);
  list.product("qkv_proj", h, sizes.qkv_features(), required.qkv);
  if (workload.config.positions == config::Positions::rotary) {
    const int64_t rotated = 2 * sizes.features(queries + sizes.key_features());
    list.elementwise("rotary", rotated, rotated, required.attention.any, list.recomputes());
  }
  list.attention(layer, keys, required.attention.any);
  list.product("o_proj", queries, h, required.out);
  add_norm(list, required.norm2.any);
  list.product(is_gated ? "gate_up_proj" : "up_proj", h, sizes.inner_features(), required.mlp);
  list.elementwise(is_gated ? "swiglu" : "gelu", sizes.features(sizes.inner_features() + ffn),
                   sizes.features(2 * sizes.inner_features() + ffn), required.activation.any,
                   workload.recompute != Recompute::none);
  list.product("down_proj", ffn, h, required.down);
  return list.take();
}

Operations embedding_operations(const Workload& workload, int rank) {
  OperationList list(workload, rank);
  const int64_t hidden = list.sizes().full_hidden();
  list.elementwise("embedding", 2 * hidden, 2 * hidden, required_by_embedding(workload).any, false);
  return list.take();
}

Operations head_operations(const Workload& workload, int rank) {
  OperationList list(workload, rank);
  const RequiredByHead required = required_by_head(workload);
  const int64_t vocab = list.sizes().shard().vocab, logits = list.sizes().features(vocab);
  list.elementwise("add_rms_norm", 4 * list.sizes().local_hidden(), 4 * list.sizes().local_hidden(),
                   required.norm.any, false);
  list.product("lm_head", workload.config.hidden_size, vocab, required.head);
  list.elementwise("cross_entropy", logits, 2 * logits, required.head.any, false);
  // The head's backward runs in the forward and repeats nothing.
  Operations operations = list.take();
  for (Operation& operation : operations) operation.recomputed = {};
  return operations;
}

Operations micro_batch_operations(const Workload& workload, int rank, CountedKeys keys) {
  Operations all;
  if (workload.has_embedding()) append(all, embedding_operations(workload, rank));
  for (int64_t layer = workload.blocks().begin; layer < workload.blocks().end; ++layer)
    append(all, block_operations(workload, rank, layer, keys));
  if (workload.has_head()) append(all, head_operations(workload, rank));
  return all;
}

StepFlop flop_of(const Operations& operations) {
  StepFlop sum;
  for (const Operation& operation : operations) {
    sum.model += operation.forward.flop + operation.input_gradient.flop + operation.weight_gradient.flop;
    sum.hardware += operation.recomputed.flop;
  }
  sum.hardware += sum.model;
  return sum;
}

}  // namespace shardwise::plan
