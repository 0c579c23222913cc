#include "shardwise/nn/positions.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/queued_copy.h"
#include "shardwise/nn/new_tokens.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

struct PositionIds {
  ParameterPtr table;
  base::Range positions;
  std::vector<base::Range> valid;  // as in Step
  Tensor of_new_tokens = {};       // [n] of a batch with caches

  Tensor added_to(const Tensor& x) const {
    const Tensor weight = table->value.detach();
    if (of_new_tokens.defined())
      return at::add(x, weight.index_select(0, kernels::queued_copy(of_new_tokens, x.device())).unsqueeze(1));
    if (valid.empty()) return at::add(x, weight.narrow(0, positions.begin, positions.size()).unsqueeze(1));
    return at::add(x, weight.index_select(0, kernels::queued_copy(of_batch(x.size(1)).flatten(), x.device()))
                          .view(x.sizes()));
  }
  /// Returns the position of every token of a batch of this size, [s, b]; padding before the first token has
  /// 0.
  Tensor of_batch(int64_t batch) const {
    const Tensor ids = at::arange(positions.begin, positions.end, at::kLong).unsqueeze(1).repeat({1, batch});
    for (size_t i = 0; i < valid.size(); ++i) {
      ids.select(1, static_cast<int64_t>(i)).sub_(valid[i].begin).clamp_min_(0);
    }
    return ids;
  }
};

Tensor new_token_positions(const Step& step) {
  if (step.cached.empty()) return {};
  return step.new_tokens ? step.new_tokens->position_ids() : at::tensor(positions_of(step.cached), at::kLong);
}

int64_t needed_positions(const Step& step) {
  if (step.cached.empty()) return step.sequence.size();
  int64_t positions = 0;
  for (const auto& [cache, rows] : step.cached) positions = std::max(positions, cache->length + rows);
  return positions;
}

struct AddPositions : torch::autograd::Function<AddPositions> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor&, PositionIds ids) {
    Tensor y = ids.added_to(x);
    parallel::save_state(context, std::move(ids));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PositionIds& ids = parallel::saved_state<PositionIds>(context);
    const Tensor dy = gradients[0].contiguous();
    Tensor gradient = ids.table->main_grad_if_trainable();
    kernels::embedding_backward_(gradient, dy, kernels::queued_copy(ids.of_batch(dy.size(1)), dy.device()),
                                 /*begin=*/0);
    return {dy, Tensor(), Tensor()};
  }
};

}  // namespace

LearnedPositions::LearnedPositions(const std::string& name, int64_t max_positions, int64_t hidden_size,
                                   const parallel::Init& init, const comm::Group& group, at::ScalarType dtype)
    : weight_(parallel::make_parameter(name + ".weight", {max_positions, hidden_size},
                                       base::ShardRule::replicated(), init, group, dtype)) {}

Tensor LearnedPositions::add(const Tensor& x, base::Range positions, const Step& step) const {
  check_step(step, x.size(1));
  const int64_t needed = needed_positions(step);
  TORCH_CHECK_VALUE(needed <= weight_->value.size(0), weight_->name, ": must have a row for each of ", needed,
                    " positions; got ", weight_->value.size(0), " [SW0442]");
  const PositionIds ids{weight_, positions, step.valid, new_token_positions(step)};
  if (!parallel::needs_gradient(weight_->value)) return ids.added_to(x);
  return AddPositions::apply(x, weight_->value, ids);
}

}  // namespace shardwise::nn
