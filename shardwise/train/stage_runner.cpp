#include "shardwise/train/stage_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise::train {
namespace {

/// Returns true if a parameter before block `end` is trained: the first part has the embeddings, part i + 1
/// block i.
bool is_trained_before(int64_t end, const parallel::ParameterParts& parts) {
  const auto is_trained = [](const parallel::ParamSpec& spec) { return !spec.parameter->is_frozen(); };
  return std::any_of(
      parts.parts.begin(), parts.parts.begin() + end + 1,
      [&](const parallel::ParamSpecs& specs) { return std::ranges::any_of(specs, is_trained); });
}

}  // namespace

StageRunner::StageRunner(const BoundModel& model, const model::DecoderWeights& weights,
                         const comm::Group& pipeline)
    : model_(model),
      weights_(weights),
      pipeline_(pipeline),
      takes_gradient_(!is_last() && is_trained_before(weights.stage().end, model.parts)),
      passes_gradient_(!is_first() && is_trained_before(weights.stage().begin, model.parts)) {
  if (const parallel::ParameterPtr copy = weights.tied_copy()) parallel::zero_grad_(*copy);
}

at::Tensor StageRunner::received_stream_(const MicroBatch& one) const {
  at::Tensor x = at::empty(model_.stream_shape(one.batch.ids, one.step),
                           at::TensorOptions(weights_.dtype()).device(pipeline_.device()));
  pipeline_.recv_(x, pipeline_.rank() - 1);
  return x.requires_grad_(passes_gradient_ && at::GradMode::is_enabled());
}

StageRunner::Saved StageRunner::forward_(const MicroBatch& one) const {
  Saved saved;
  if (!is_first()) saved.input = received_stream_(one);
  at::Tensor x = is_first() ? model_.embedded(one.batch.ids, one.step) : saved.input;
  x = model_.through_blocks(x, one.step);
  if (!is_last()) {
    pipeline_.send(x.detach().contiguous(), pipeline_.rank() + 1);
    saved.output = x;
  } else {
    saved.output = model_.loss_of(x, one.batch.labels, one.loss, one.step);
  }
  return saved;
}

void StageRunner::backward_(const Saved& saved) const {
  if (is_last()) {
    saved.output.backward();
  } else if (takes_gradient_) {
    at::Tensor gradient = at::empty(saved.output.sizes(), saved.output.options().requires_grad(false));
    pipeline_.recv_(gradient, pipeline_.rank() + 1);
    saved.output.backward(gradient);
  }
  if (passes_gradient_) pipeline_.send(saved.input.grad().contiguous(), pipeline_.rank() - 1);
}

at::Tensor StageRunner::run(const base::Range& micro_batches, base::PipelineSchedule schedule,
                            const Make& make) {
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kDouble).device(pipeline_.device()));
  const base::Pipeline pipeline{pipeline_.size(), /*chunks=*/1, micro_batches.size(), schedule};
  std::unordered_map<int64_t, Saved> in_flight;  // by micro-batch
  for (const base::PipelineAction& action : pipeline.actions(pipeline_.rank())) {
    if (action.kind == base::PipelineAction::Kind::forward) {
      Saved saved = forward_(make(micro_batches.begin + action.micro_batch));
      if (is_last()) loss += saved.output.detach();
      in_flight.emplace(action.micro_batch, std::move(saved));
    } else {
      backward_(in_flight.extract(action.micro_batch).mapped());
    }
  }
  return loss;
}

double StageRunner::evaluate(const MicroBatch& one) {
  const at::NoGradGuard no_grad;
  const Saved saved = forward_(one);
  return is_last() ? saved.output.item<double>() : 0;
}

parallel::ParameterPtr StageRunner::tied_embedding() const {
  if (!weights_.config().tie_word_embeddings || !(is_first() || is_last())) return nullptr;
  return is_first() ? weights_.all_parameters().front().parameter : weights_.tied_copy();
}

bool StageRunner::trains_tied_weight() const {
  const parallel::ParameterPtr embedding = tied_embedding();
  return embedding && !embedding->is_frozen();
}

void StageRunner::add_tied_gradient_() {
  if (!trains_tied_weight()) return;
  const parallel::ParameterPtr embedding = tied_embedding();
  if (is_last()) {
    pipeline_.send(embedding->main_grad, 0);
    parallel::zero_grad_(*embedding);
    return;
  }
  at::Tensor of_head = at::empty_like(embedding->main_grad);
  pipeline_.recv_(of_head, pipeline_.size() - 1);
  embedding->main_grad.add_(of_head);
}

void StageRunner::publish_tied_weight_() {
  const parallel::ParameterPtr embedding = tied_embedding();
  if (!embedding) return;
  at::Tensor value = embedding->value.detach();
  if (is_last()) return pipeline_.recv_(value, 0);
  pipeline_.send(value, pipeline_.size() - 1);
}

}  // namespace shardwise::train
