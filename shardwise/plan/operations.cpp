#include "shardwise/plan/operations.h"

#include "shardwise/plan/expert_shard.h"
#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {
namespace {

/// Returns the number of query-key pairs of a head in one sequence on a rank.
double counted_pairs(const Workload& workload, int64_t layer, CountedKeys keys) {
  const auto s = static_cast<double>(workload.sequence_length), ranks = static_cast<double>(workload.cp);
  if (keys == CountedKeys::all) return s * s / ranks;
  const auto window =
      static_cast<double>(workload.config.window_of(layer).value_or(workload.sequence_length));
  return (window >= s ? s * s / 2 : window * s - window * window / 2) / ranks;
}

/// y = x·wᵀ of [rows, in] and [out, in], or several of them with `rows` in all.
struct Product {
  int64_t rows, in, out, count = 1;
};

class OperationList {
 public:
  /// `has_backward`: whether full recomputation repeats the forward of these operations.
  OperationList(const Workload& workload, int rank, bool has_backward)
      : workload_(workload),
        sizes_(workload, rank),
        recomputes_(workload.recompute == Recompute::full && has_backward) {}

  const Sizes& sizes() const { return sizes_; }
  Operations take() { return std::move(list_); }

  /// Adds a product of all rows.
  void product(const char* name, int64_t in, int64_t out, const RequiredGradients& required) {
    product(name, {sizes_.shard().rows, in, out}, required);
  }
  void product(const char* name, const Product& p, const RequiredGradients& required) {
    const int64_t weights = p.count * p.out * p.in;
    const double flop = 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.out * p.in);
    const int64_t activations = p.rows * (p.in + p.out) * workload_.element_bytes;
    const Pass pass{flop, activations + weights * workload_.element_bytes};
    const Pass wgrad{flop, activations + 2 * weights * workload_.accumulator_bytes()};
    list_.push_back({name, Operation::Kind::product, pass, when(required.input, pass),
                     when(required.weight, wgrad), when(recomputes(), pass), weights, p.count});
  }

  /// Adds the products of attention: queries and keys, scores and values. Backward has twice as many, and
  /// computes the scores again. Context parallelism reads the keys and values of all its ranks.
  void attention(int64_t layer, CountedKeys keys, bool has_backward) {
    const double pairs = counted_pairs(workload_, layer, keys) * static_cast<double>(workload_.batch_size);
    const double scores = 2 * static_cast<double>(sizes_.query_features()) * pairs,
                 both = scores + 2 * static_cast<double>(sizes_.output_features()) * pairs;
    const int64_t moved = sizes_.features(sizes_.query_features() + sizes_.output_features() +
                                          workload_.cp * (sizes_.key_features() + sizes_.value_features()));
    Pass repeated = when(has_backward, {scores, 0});
    if (recomputes()) repeated += {both, moved};
    list_.push_back({"attention",
                     Operation::Kind::attention,
                     {both, moved},
                     when(has_backward, {2 * both, 2 * moved}),
                     {},
                     repeated,
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
                     when(is_recomputed, {0, forward}),
                     /*weight_elements=*/0});
  }

  bool recomputes() const { return recomputes_; }

 private:
  static Pass when(bool happens, const Pass& pass) { return happens ? pass : Pass{}; }

  const Workload& workload_;
  Sizes sizes_;
  bool recomputes_;
  Operations list_;
};

/// The sum of residual stream and a layer's output, and its norm: two tensors in, two out; backward reads the
/// sum and two gradients and writes one.
void add_norm(OperationList& list, bool has_backward) {
  const int64_t hidden = list.sizes().local_hidden();
  list.elementwise("add_rms_norm", 4 * hidden, 4 * hidden, has_backward, list.recomputes());
}

/// Queries, keys and values of latent attention: each rank computes the latents of its rows, and from all
/// latents those of its heads.
void add_latent_projections(OperationList& list, const Workload& workload) {
  const config::LatentAttention& latent = *workload.config.latent_attention;
  const Sizes& sizes = list.sizes();
  const int64_t h = workload.config.hidden_size, rows = sizes.shard().residual_rows;
  const RequiredGradients all{true, true, true};
  list.product("q_a_proj", {rows, h, latent.q_lora_rank}, all);
  list.product("kv_a_proj", {rows, h, latent.cached_features()}, all);
  const int64_t normalized = 2 * rows * (latent.q_lora_rank + latent.kv_lora_rank) * workload.element_bytes;
  list.elementwise("latent_norm", normalized, 2 * normalized, true, list.recomputes());
  list.product("q_b_proj", latent.q_lora_rank, sizes.query_features(), all);
  const int64_t unrotated = sizes.shard().kv_heads * latent.qk_nope_head_dim;
  list.product("kv_b_proj", latent.kv_lora_rank, unrotated + sizes.value_features(), all);
}

void add_mlp(OperationList& list, const Workload& workload, const RequiredByBlock& required) {
  const Sizes& sizes = list.sizes();
  const int64_t h = workload.config.hidden_size, inner = sizes.inner_features(), ffn = sizes.shard().ffn;
  const bool is_gated = workload.config.is_gated();
  list.product(is_gated ? "gate_up_proj" : "up_proj", h, inner, required.mlp);
  list.elementwise(
      is_gated ? "swiglu" : "gelu", sizes.features(inner + ffn), sizes.features(2 * inner + ffn),
      required.activation.any,
      list.recomputes() || (workload.recompute == Recompute::selective && required.activation.any));
  list.product("down_proj", ffn, h, required.down);
}

/// Router, and the experts of this rank; their rows are copied in the order of the experts and back.
void add_experts(OperationList& list, const Workload& workload) {
  const config::Experts& experts = *workload.config.experts;
  const ExpertShard shard = expert_shard(workload);
  const int64_t h = workload.config.hidden_size, f = experts.intermediate_size, e = workload.element_bytes;
  const int64_t tokens = list.sizes().shard().residual_rows, scores = tokens * experts.count;
  const RequiredGradients all{true, true, true};
  list.product("router", {tokens, h, experts.count}, all);
  list.elementwise("routing", 3 * list.sizes().statistics(scores), 3 * list.sizes().statistics(scores), true,
                   list.recomputes());
  list.elementwise("dispatch", 2 * shard.rows * h * e, 2 * shard.rows * h * e, true, list.recomputes());
  list.product("experts_gate_up", {shard.rows, h, 2 * f, shard.experts}, all);
  list.elementwise("experts_swiglu", 3 * shard.rows * f * e, 5 * shard.rows * f * e, true,
                   workload.recompute != Recompute::none);
  list.product("experts_down", {shard.rows, f, h, shard.experts}, all);
  list.elementwise("combine", 2 * shard.rows * h * e, 2 * shard.rows * h * e, true, list.recomputes());
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
  if (workload.split_batch) {
    Operations both = block_operations(workload.half_batch(0), rank, layer, keys);
    append(both, block_operations(workload.half_batch(1), rank, layer, keys));
    return both;
  }
  const RequiredByBlock required = workload.required_by_block(layer);
  OperationList list(workload, rank, required.any());
  const Sizes& sizes = list.sizes();
  const config::Config& c = workload.config;
  add_norm(list, required.norm1.any);
  if (c.latent_attention) {
    add_latent_projections(list, workload);
  } else {
    list.product("qkv_proj", c.hidden_size, sizes.qkv_features(), required.qkv);
  }
  if (c.positions == config::Positions::rotary) {
    const int64_t rotated = 2 * sizes.features(sizes.query_features() + sizes.key_features());
    list.elementwise("rotary", rotated, rotated, required.attention.any, list.recomputes());
  }
  list.attention(layer, keys, required.attention.any);
  list.product("o_proj", sizes.output_features(), c.hidden_size, required.out);
  add_norm(list, required.norm2.any);
  if (c.mlp_size(layer) > 0) add_mlp(list, workload, required);
  if (c.has_experts(layer)) add_experts(list, workload);
  return list.take();
}

Operations mlp_operations(const Workload& workload, int rank, int64_t layer) {
  const RequiredByBlock required = workload.required_by_block(layer);
  OperationList list(workload, rank, required.any());
  add_mlp(list, workload, required);
  return list.take();
}

Operations embedding_operations(const Workload& workload, int rank) {
  OperationList list(workload, rank, /*has_backward=*/false);
  const int64_t hidden = list.sizes().full_hidden();
  list.elementwise("embedding", 2 * hidden, 2 * hidden, workload.required_by_embedding().any, false);
  return list.take();
}

Operations head_operations(const Workload& workload, int rank) {
  // The head's backward runs in the forward and repeats nothing.
  OperationList list(workload, rank, /*has_backward=*/false);
  const RequiredByHead required = workload.required_by_head();
  const int64_t vocab = list.sizes().shard().vocab, logits = list.sizes().features(vocab);
  list.elementwise("add_rms_norm", 4 * list.sizes().local_hidden(), 4 * list.sizes().local_hidden(),
                   required.norm.any, false);
  list.product("lm_head", workload.config.hidden_size, vocab, required.head);
  list.elementwise("cross_entropy", logits, 2 * logits, required.head.any, false);
  return list.take();
}

Operations micro_batch_operations(const Workload& workload, int rank, CountedKeys keys) {
  Operations all;
  if (workload.has_embedding()) append(all, embedding_operations(workload, rank));
  for (int64_t layer = workload.blocks().begin; layer < workload.blocks().end; ++layer)
    append(all, block_operations(workload, rank, layer, keys));
  if (workload.has_head()) append(all, head_operations(workload, rank));
  return all;
}

StepFlop operator+(const StepFlop& a, const StepFlop& b) {
  return {a.model + b.model, a.hardware + b.hardware};
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
