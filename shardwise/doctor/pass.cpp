#include "shardwise/doctor/pass.h"

#include <ATen/core/grad_mode.h>

#include <list>

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::Collectives;
using plan::SaveForBackward;
using plan::Stream;

namespace {

/// What a forward shows. The list's elements stay where they are, for the hooks that backward calls.
class Watch {
 public:
  nn::Observer observer() {
    return [this](const nn::Stage& stage, const at::Tensor& local) { see(stage, local); };
  }
  std::vector<Activation> take() { return {seen_.begin(), seen_.end()}; }

 private:
  /// Copies, for what a crossing reads or reduces in place is memory that is used again.
  void see(const nn::Stage& stage, const at::Tensor& local) {
    Activation& activation = seen_.emplace_back(Activation{stage, local.detach().clone(), {}});
    if (!local.requires_grad()) return;
    local.register_hook(
        [&activation](const at::Tensor& gradient) { activation.gradient = gradient.detach().clone(); });
  }

  std::list<Activation> seen_;
};

at::Tensor forward(const DecoderWeights& weights, const Task& task, const nn::Step& step, Stream stream,
                   const nn::Observer& observer) {
  const auto over = [&](const auto& decoder) {
    return decoder.loss(task.tokens.ids, task.tokens.labels, task.loss, step).local();
  };
  if (stream == Stream::tp) return over(model::Decoder<nn::Invariant>(weights, observer));
  return over(model::Decoder<nn::Sharded<nn::kSequence>>(weights, observer));
}

comm::Group on_path(const comm::Group& group, SaveForBackward save_for_backward) {
  return save_for_backward == SaveForBackward::shard_in_place ? group : group.without_symmetric_heap();
}

/// What `group` has counted since `before`.
class Meter {
 public:
  explicit Meter(const comm::Group& group) : group_(group), before_(group.counters()) {}

  /// The three collectives that training uses, since the last call; whatever else is added to `other`.
  Collectives read(plan::Traffic& other) {
    const comm::Counters spent = group_.counters() - before_;
    before_ = group_.counters();
    const auto of = [&](comm::Op op) { return plan::Traffic{spent[op].calls, spent[op].bytes}; };
    const Collectives used{of(comm::Op::all_reduce), of(comm::Op::all_gather), of(comm::Op::reduce_scatter)};
    other.calls += spent.total().calls - used.total().calls;
    other.bytes += spent.total().bytes - used.total().bytes;
    return used;
  }

 private:
  comm::Group group_;
  comm::Counters before_;
};

}  // namespace

parallel::ParamSpecs specs_of(const DecoderWeights& weights, Stream stream) {
  return stream == Stream::tp ? weights.specs<nn::Invariant>() : weights.specs<nn::Sharded<nn::kSequence>>();
}

nn::Step step_of(const Task& task, const Way& way, const comm::Group& group) {
  nn::Step step(on_path(group, way.save_for_backward), task.tokens.ids.size(0), task.key);
  step.save_for_backward = way.save_for_backward == SaveForBackward::gathered
                               ? parallel::SaveForBackward::gathered
                               : parallel::SaveForBackward::shard;
  step.dropout = task.dropout;
  step.attention_dropout = task.attention_dropout;
  step.recompute = way.recompute;
  return step;
}

Pass run_pass(const DecoderWeights& weights, const Task& task, const Way& way) {
  for (const nn::UsedParameter& role : weights.roles()) parallel::zero_grad_(*role.parameter);
  const comm::Group group = on_path(weights.group().with_new_counters(), way.save_for_backward);
  const nn::Step step = step_of(task, way, group);
  const parallel::ParamSpecs specs = specs_of(weights, way.stream);
  Pass pass;
  Watch watch;
  Meter meter(group);

  const at::Tensor loss = forward(weights, task, step, way.stream, watch.observer());
  pass.loss = loss.item<double>();
  pass.sent.passes.forward = meter.read(pass.sent.other);
  loss.backward();
  pass.sent.passes.backward = meter.read(pass.sent.other);
  pass.norms.two = parallel::synced_norm_(specs, group);
  pass.sent.optimizer = meter.read(pass.sent.other);

  pass.norms.one = parallel::gradient_norm(specs, parallel::Norm::one, group);
  pass.norms.inf = parallel::gradient_norm(specs, parallel::Norm::inf, group);
  pass.activations = watch.take();
  return pass;
}

double loss_of(const DecoderWeights& weights, const Task& task, const Way& way) {
  const at::NoGradGuard no_grad;
  return forward(weights, task, step_of(task, way, weights.group()), way.stream, {}).item<double>();
}

}  // namespace shardwise::doctor
