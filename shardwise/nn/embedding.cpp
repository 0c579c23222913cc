#include "shardwise/nn/embedding.h"

#include <ATen/ops/aminmax.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/queued_copy.h"
#include "shardwise/parallel/collectives.h"
#include "shardwise/parallel/node.h"
#include "shardwise/quant/product.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

Tensor lookup(const Tensor& ids, const Tensor& table, int64_t begin, const comm::Group& group) {
  Tensor y = group.empty({ids.size(0), ids.size(1), table.size(1)}, table.scalar_type());
  kernels::embedding_out(y, ids, table, begin);
  return y;
}

struct Lookup : torch::autograd::Function<Lookup> {
  struct Table {
    ParameterPtr parameter;
    int64_t begin;
  };

  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& ids, Table table,
                        const comm::Group& group) {
    context->save_for_backward({ids});
    const int64_t begin = table.begin;
    parallel::save_state(context, std::move(table));
    return lookup(ids, weight, begin, group);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Table& table = parallel::saved_state<Table>(context);
    base::enter_part(table.parameter->name);
    const Tensor ids = context->get_saved_variables()[0];
    Tensor gradient = table.parameter->main_grad_if_trainable();
    kernels::embedding_backward_(gradient, gradients[0].contiguous(), ids, table.begin);
    return {Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

void check_ids(const Tensor& ids, int64_t vocab_size) {
  TORCH_CHECK_VALUE(ids.dim() == 2 && ids.scalar_type() == at::kLong,
                    "embedding: ids must be [s, b] int64; got ", ids.sizes(), " ", ids.scalar_type(),
                    " [SW0433]");
  if (ids.numel() == 0 || !ids.is_cpu()) return;  // those on a device are ours
  const auto [low, high] = at::aminmax(ids);
  TORCH_CHECK_VALUE(low.item<int64_t>() >= 0 && high.item<int64_t>() < vocab_size,
                    "embedding: ids must lie in [0, ", vocab_size, "); got ", low.item<int64_t>(), " to ",
                    high.item<int64_t>(), " [SW0434]");
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, int64_t hidden_size,
                                               const base::Split& vocab, const parallel::Init& init,
                                               const comm::Group& group, at::ScalarType dtype)
    : VocabParallelEmbedding(
          parallel::make_parameter(name + ".weight", {vocab.size(), hidden_size},
                                   base::ShardRule::sharded(/*dim=*/0, vocab), init, group, dtype),
          vocab, dtype) {}

VocabParallelEmbedding::VocabParallelEmbedding(ParameterPtr table, const base::Split& vocab,
                                               at::ScalarType dtype)
    : weight_(std::move(table)), vocab_(vocab), dtype_(dtype) {}

Tensor VocabParallelEmbedding::look_up(const Tensor& ids, int64_t begin, const comm::Group& group) const {
  base::enter_part(weight_->name);
  const Tensor& table = weight_->value;
  if (parallel::needs_gradient(table)) return Lookup::apply(table, ids, Lookup::Table{weight_, begin}, group);
  if (!weight_->panels) return lookup(ids, table, begin, group);
  Tensor y = group.empty({ids.size(0), ids.size(1), weight_->size(1)}, dtype_);
  quant::embedding_out(y, ids, *weight_->panels, begin);
  return y;
}

template <ResidualStream Stream>
Placed<Stream> VocabParallelEmbedding::to(const Tensor& ids, const Step& step) const {
  check_ids(ids, vocab_.size());
  const int64_t begin = vocab_.range(step.group.rank()).begin;
  const Tensor local_ids = kernels::queued_copy(ids, step.group.device());
  return parallel::leave<Stream>(Placed<Partial>(look_up(local_ids, begin, step.group)), step);
}

template Placed<Invariant> VocabParallelEmbedding::to<Invariant>(const Tensor&, const Step&) const;
template Placed<Sharded<kSequence>> VocabParallelEmbedding::to<Sharded<kSequence>>(const Tensor&,
                                                                                   const Step&) const;

}  // namespace shardwise::nn
