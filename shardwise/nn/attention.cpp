#include "shardwise/nn/attention.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <span>

#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/cached_attention.h"
#include "shardwise/kernels/qk_norm.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/new_tokens.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

/// The state that forward and backward share, besides tensors.
struct Core {
  HeadLayout layout;
  std::shared_ptr<Rotary> rotary;
  std::optional<QkNorm> norm;
  kernels::AttentionOptions options;

  /// `positions`: of row 0 of each sequence; one position is that of all. `on_device`: the same, if it is
  /// there.
  kernels::HeadSplit head_split(const Tensor& tokens, const std::vector<int64_t>& positions = {0},
                                const Tensor& on_device = {}) const {
    const int64_t last = *std::ranges::max_element(positions);
    const kernels::RotaryTables& tables = rotary->tables(last + tokens.size(0), tokens);
    kernels::HeadSplit split{layout.heads, layout.kv_heads, layout.head_dim, tables, last, options.valid};
    if (positions.size() > 1) split.first_positions = positions;
    split.first_positions_on_device = on_device;
    return split;
  }

  kernels::QkNormParams weights() const {
    return {{norm->q->value.detach(), norm->k->value.detach()}, norm->eps};
  }

  kernels::Qkv heads_of(const Tensor& qkv, const std::vector<int64_t>& positions = {0},
                        const Tensor& on_device = {}) const {
    const kernels::HeadSplit split = head_split(qkv, positions, on_device);
    return norm ? kernels::split_norm_rotary(qkv, split, weights()) : kernels::split_rotary(qkv, split);
  }
};

kernels::AttentionOptions attention_options(const HeadLayout& layout, const SelfAttentionOptions& options,
                                            const Step& step) {
  kernels::AttentionOptions result{layout.kv_of_head, /*causal=*/true, options.window, step.valid};
  if (step.attention_dropout == 0) return result;
  TORCH_CHECK_VALUE(options.layer,
                    "attention: dropout needs options.layer, the layer's index; got none [SW0431]");
  result.dropout = {step.attention_dropout,
                    mask_key(step.key, {*options.layer, DropoutSite::Site::attention_probabilities}),
                    layout.first_head, layout.all_heads};
  return result;
}

/// Attention of one sequence's new tokens over its cache, to which it appends their keys and values. [n, 1,
/// a·d]
Tensor attend_to_cache(const Tensor& qkv, const Core& core, const Cache& cache, int64_t layer) {
  core.rotary->tables(cache.capacity(), qkv);  // one table for all positions
  const kernels::Qkv heads = core.heads_of(qkv, {cache.length});
  const int64_t past = cache.length, rows = qkv.size(0);
  const auto& [keys, values] = cache.layer(layer);
  kernels::store_rows_(keys, past, heads.k[0]);
  kernels::store_rows_(values, past, heads.v[0]);
  const auto stored = [&](const kernels::StoredHeads& from) {
    return kernels::stored_rows(from, past + rows, qkv.scalar_type()).unsqueeze(0);
  };
  const kernels::Qkv all{heads.q, stored(keys), stored(values)};
  return kernels::attention(all, core.options).out;
}

/// Attention of a few new tokens of each sequence, one by one. [Σ rows, 1, a·d]
Tensor attend_one_by_one(const Tensor& qkv, const Core& core, std::span<const CachedRows> sequences,
                         int64_t layer) {
  for (const CachedRows& sequence : sequences)
    core.rotary->tables(sequence.cache->capacity(), qkv);  // one table for all positions
  return kernels::cached_attention(core.heads_of(qkv.transpose(0, 1), positions_of(sequences)),
                                   caches_of(sequences, layer), core.options);
}

Tensor attend_one_by_one(const Tensor& qkv, const Core& core, const NewTokens& tokens, int64_t layer) {
  core.rotary->tables(tokens.capacity(), qkv);
  const Tensor on_device = qkv.is_cpu() ? Tensor() : tokens.position_ids();
  return kernels::cached_attention(core.heads_of(qkv.transpose(0, 1), tokens.positions(), on_device),
                                   tokens.caches(layer), core.options, tokens.table(layer));
}

Tensor attend_to_caches(const Tensor& qkv, const Core& core, const Step& step,
                        const std::optional<int64_t>& layer) {
  TORCH_CHECK_VALUE(layer, "attention: a cache needs options.layer, the layer's index; got none [SW0432]");
  if (step.new_tokens) return attend_one_by_one(qkv, core, *step.new_tokens, *layer);
  const std::vector<CachedRows>& sequences = step.cached;
  const auto has_few = [](const CachedRows& one) { return one.rows <= kRowsOneByOne; };
  if (std::ranges::all_of(sequences, has_few)) return attend_one_by_one(qkv, core, sequences, *layer);
  std::vector<Tensor> outs;
  int64_t begin = 0;
  for (const CachedRows& sequence : sequences) {
    const Tensor rows = qkv.narrow(0, begin, sequence.rows);
    outs.push_back(has_few(sequence) ? attend_one_by_one(rows, core, {&sequence, 1}, *layer)
                                     : attend_to_cache(rows, core, *sequence.cache, *layer));
    begin += sequence.rows;
  }
  return outs.size() == 1 ? outs[0] : at::cat(outs);
}

struct Attention : torch::autograd::Function<Attention> {
  // The weights are inputs only so that autograd sees them: their gradients go to main_grad.
  static Tensor forward(AutogradContext* context, const Tensor& qkv, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, Core core) {
    const auto [q, k, v] = core.heads_of(qkv);
    auto [out, lse] = kernels::attention({q, k, v}, core.options);
    if (core.norm) {
      context->save_for_backward({out, lse, qkv});
    } else {
      context->save_for_backward({out, lse, q, k, v});
    }
    parallel::save_state(context, std::move(core));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Core& core = parallel::saved_state<Core>(context);
    const variable_list saved = context->get_saved_variables();
    const Tensor d_out = gradients[0].contiguous();
    // The recomputed heads are released before d_qkv is allocated, so the norm costs no extra memory.
    const kernels::Qkv d_heads = kernels::attention_backward(
        d_out, core.norm ? core.heads_of(saved[2]) : kernels::Qkv{saved[2], saved[3], saved[4]},
        {saved[0], saved[1]}, core.options);
    const kernels::HeadSplit split = core.head_split(d_out);
    const Tensor d_qkv =
        core.norm ? kernels::split_norm_rotary_backward(
                        d_heads, saved[2], split, core.weights(),
                        {core.norm->q->main_grad_if_trainable(), core.norm->k->main_grad_if_trainable()})
                  : kernels::split_rotary_backward(d_heads, split);
    return {d_qkv, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

HeadLayout HeadLayout::of(const base::Split& query, const base::Split& kv, int64_t head_dim, int rank) {
  const int64_t group = query.size() / kv.size();
  const base::Range heads = query.range(rank), kv_heads = kv.range(rank);
  HeadLayout layout{heads.size(), kv_heads.size(), head_dim, {}, heads.begin, query.size()};
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    layout.kv_of_head.push_back(head / group - kv_heads.begin);
  }
  return layout;
}

QkNorm QkNorm::make(const std::string& name, int64_t head_dim, double eps, const comm::Group& group,
                    at::ScalarType dtype) {
  const auto weight = [&](const char* which) {
    return parallel::make_parameter(name + which, {head_dim}, base::ShardRule::replicated(),
                                    parallel::Init::constant(1), group, dtype);
  };
  return {weight(".q_norm.weight"), weight(".k_norm.weight"), eps};
}

void CausalSelfAttention::append_parameters(UsedParameters& parameters) const {
  if (!options_.norm) return;
  parameters.push_back({options_.norm->q, ParameterUse::per_head});
  parameters.push_back({options_.norm->k, ParameterUse::per_head});
}

Placed<Sharded<kFeature>> CausalSelfAttention::operator()(const Placed<Sharded<kFeature>>& qkv,
                                                          const Step& step) const {
  const auto& norm = options_.norm;
  const Core core{layout_, rotary_, norm, attention_options(layout_, options_, step)};
  const std::optional<Tensor> q_weight = parallel::leaf_of(norm ? norm->q : nullptr),
                              k_weight = parallel::leaf_of(norm ? norm->k : nullptr);
  if (parallel::needs_gradient(qkv.local(), q_weight.value_or(Tensor()), k_weight.value_or(Tensor())))
    return Placed<Sharded<kFeature>>(Attention::apply(qkv.local(), q_weight, k_weight, core));
  if (!step.cached.empty())
    return Placed<Sharded<kFeature>>(attend_to_caches(qkv.local(), core, step, options_.layer));
  return Placed<Sharded<kFeature>>(kernels::attention(core.heads_of(qkv.local()), core.options).out);
}

}  // namespace shardwise::nn
