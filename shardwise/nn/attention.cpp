#include "shardwise/nn/attention.h"

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/attention.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

struct Core {
  HeadLayout layout;
  std::shared_ptr<Rotary> rotary;
  int64_t shard_begin;  // of this rank's part of the sequence: read by a deliberate fault alone

  kernels::RotaryTables tables(const Tensor& qkv) const {
    const kernels::RotaryTables& tables = rotary->tables(qkv.size(0), qkv.scalar_type());
    if (!base::mutated(base::Mutation::rotary_local_position)) return tables;
    return {tables.cos.roll(shard_begin, 0), tables.sin.roll(shard_begin, 0)};
  }
};

kernels::Qkv split(const Tensor& qkv, const Core& core) {
  const HeadLayout& layout = core.layout;
  return kernels::split_rotary(qkv, layout.heads, layout.kv_heads, layout.head_dim, core.tables(qkv));
}

struct Attention : torch::autograd::Function<Attention> {
  static Tensor forward(AutogradContext* context, const Tensor& qkv, Core core) {
    const kernels::Qkv heads = split(qkv, core);
    auto [out, lse] = kernels::attention(heads.q, heads.k, heads.v, core.layout.kv_of_head, /*causal=*/true);
    context->save_for_backward({heads.q, heads.k, heads.v, out, lse});
    parallel::keep(context, std::move(core));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Core& core = parallel::kept<Core>(context);
    const variable_list saved = context->get_saved_variables();
    const Tensor d_out = gradients[0].contiguous();
    const kernels::Qkv d_heads = kernels::attention_backward(
        d_out, {saved[0], saved[1], saved[2]}, saved[3], saved[4], core.layout.kv_of_head, /*causal=*/true);
    return {kernels::split_rotary_backward(d_heads, core.tables(d_out)), Tensor()};
  }
};

}  // namespace

HeadLayout HeadLayout::of(const base::Split& query, const base::Split& kv, int64_t head_dim, int rank) {
  const int64_t group = query.size() / kv.size();
  const base::Range heads = query.range(rank), held = kv.range(rank);
  HeadLayout layout{heads.size(), held.size(), head_dim, {}};
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    const bool by_modulo = base::mutated(base::Mutation::kv_head_modulo);
    layout.kv_of_head.push_back(by_modulo ? rank % held.size() : head / group - held.begin);
  }
  return layout;
}

Placed<Sharded<kFeature>> CausalSelfAttention::operator()(const Placed<Sharded<kFeature>>& qkv,
                                                          const Step& step) const {
  const Core core{layout_, rotary_, step.own_sequence().begin};
  if (parallel::needs_gradient(qkv.local()))
    return Placed<Sharded<kFeature>>(Attention::apply(qkv.local(), core));
  const kernels::Qkv heads = split(qkv.local(), core);
  return Placed<Sharded<kFeature>>(
      kernels::attention(heads.q, heads.k, heads.v, layout_.kv_of_head, /*causal=*/true).out);
}

}  // namespace shardwise::nn
