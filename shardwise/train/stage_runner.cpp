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
    : model_(model), weights_(weights), pipeline_(pipeline) {
  for (const base::Range& blocks : weights.stage()) {
    takes_gradient_.push_back(is_trained_before(blocks.end, model.parts));
    passes_gradient_.push_back(blocks.begin > 0 && is_trained_before(blocks.begin, model.parts));
  }
  if (const parallel::ParameterPtr copy = weights.tied_copy()) parallel::zero_grad_(*copy);
}

at::Tensor StageRunner::received_(const MicroBatch& one, const Message& message) const {
  at::Tensor x = at::empty(model_.stream_shape(one.batch.ids, one.step),
                           at::TensorOptions(weights_.dtype()).device(pipeline_.device()));
  pipeline_.recv_(x, message.peer, message.tag);
  return x;
}

void StageRunner::send_(const at::Tensor& x, const Message& message) const {
  pipeline_.send(x.contiguous(), message.peer, message.tag);
}

StageRunner::Message StageRunner::stream_into(int64_t part) const {
  const bool is_mine = part % pipeline_.size() == pipeline_.rank();
  const int64_t sender = part - 1;
  return {static_cast<int>((is_mine ? sender : part) % pipeline_.size()), static_cast<int>(2 * part)};
}

StageRunner::Message StageRunner::gradient_of(int64_t part) const {
  return {stream_into(part).peer, static_cast<int>(2 * part + 1)};
}

StageRunner::Saved StageRunner::forward_(const MicroBatch& one, size_t chunk) const {
  const int64_t part = part_of(chunk);
  Saved saved;
  if (part > 0)
    saved.input = received_(one, stream_into(part))
                      .requires_grad_(passes_gradient_[chunk] && at::GradMode::is_enabled());
  at::Tensor x = part > 0 ? saved.input : model_.embedded(one.batch.ids, one.step);
  x = model_.through_blocks(x, chunk, one.step);
  if (!is_end(part)) {
    send_(x.detach(), stream_into(part + 1));
    saved.output = x;
  } else {
    saved.output = model_.loss_of(x, one.batch.labels, one.loss, one.step);
  }
  return saved;
}

void StageRunner::backward_(const Saved& saved, size_t chunk) const {
  const int64_t part = part_of(chunk);
  if (is_end(part)) {
    saved.output.backward();
  } else if (takes_gradient_[chunk]) {
    at::Tensor gradient = at::empty(saved.output.sizes(), saved.output.options().requires_grad(false));
    const Message message = gradient_of(part + 1);
    pipeline_.recv_(gradient, message.peer, message.tag);
    saved.output.backward(gradient);
  }
  if (passes_gradient_[chunk]) send_(saved.input.grad(), gradient_of(part));
}

at::Tensor StageRunner::run(const base::Range& micro_batches, base::PipelineSchedule schedule,
                            const Make& make) {
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kDouble).device(pipeline_.device()));
  const base::Pipeline pipeline{pipeline_.size(), std::ssize(weights_.stage()), micro_batches.size(),
                                schedule};
  std::vector<std::unordered_map<int64_t, Saved>> in_flight(
      weights_.stage().size());  // by chunk, micro-batch
  for (const base::PipelineAction& action : pipeline.actions(pipeline_.rank())) {
    const auto chunk = static_cast<size_t>(action.chunk);
    if (action.kind == base::PipelineAction::Kind::forward) {
      Saved saved = forward_(make(micro_batches.begin + action.micro_batch), chunk);
      if (is_end(part_of(chunk))) loss += saved.output.detach();
      in_flight[chunk].emplace(action.micro_batch, std::move(saved));
    } else {
      backward_(in_flight[chunk].extract(action.micro_batch).mapped(), chunk);
    }
  }
  return loss;
}

double StageRunner::evaluate(const MicroBatch& one) {
  const at::NoGradGuard no_grad;
  Saved saved;
  for (size_t chunk = 0; chunk < weights_.stage().size(); ++chunk) saved = forward_(one, chunk);
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
