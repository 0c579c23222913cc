#include "shardwise/doctor/trace.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <list>

#include "shardwise/nn/dropout.h"

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::Collectives;
using plan::ColumnInputStorage;
using plan::Parallelism;

namespace {

/// Records activations in forward and their gradients in backward. A std::list, because hooks hold references
/// to its elements.
class ActivationRecorder {
 public:
  nn::Observer observer() {
    return [this](const nn::Stage& stage, const at::Tensor& local) { record(stage, local); };
  }
  std::vector<StageOutput> take() { return {activations_.begin(), activations_.end()}; }

 private:
  /// Copies, because collectives reuse the memory that they read or reduce in place.
  void record(const nn::Stage& stage, const at::Tensor& local) {
    using enum nn::Stage::Kind;
    if (stage.kind == logits_gradient) return append(activations_.back().gradient, local);
    const bool is_next_chunk = stage.kind == logits && activations_.back().stage.kind == logits;
    if (is_next_chunk) return append(activations_.back().value, local);
    StageOutput& activation = activations_.emplace_back(StageOutput{stage, local.detach().clone(), {}});
    if (!local.requires_grad()) return;
    local.register_hook(
        [&activation](const at::Tensor& gradient) { activation.gradient = gradient.detach().clone(); });
  }

  static void append(at::Tensor& rows, const at::Tensor& chunk) {
    rows = rows.defined() ? at::cat({rows, chunk.detach()}) : chunk.detach().clone();
  }

  std::list<StageOutput> activations_;
};

at::Tensor forward(const DecoderWeights& weights, const TestCase& test_case, const nn::Step& step,
                   Parallelism parallelism, const nn::Observer& observer) {
  const auto over = [&](const auto& decoder) {
    return decoder.loss(test_case.tokens.ids, test_case.tokens.labels, test_case.loss, step).local();
  };
  if (parallelism == Parallelism::tp) return over(model::Decoder<nn::Invariant>(weights, observer));
  return over(model::Decoder<nn::Sharded<nn::kSequence>>(weights, observer));
}

comm::Group group_for(const comm::Group& group, ColumnInputStorage storage) {
  return storage == ColumnInputStorage::shard_in_place ? group : group.without_symmetric_heap();
}

/// Reads the group's counters as differences.
class Meter {
 public:
  explicit Meter(const comm::Group& group) : group_(group), before_(group.counters()) {}

  /// Returns the three collectives that training uses since the last call; adds all others to `other`.
  Collectives read(plan::Traffic& other) {
    const comm::Counters delta = group_.counters() - before_;
    before_ = group_.counters();
    const auto of = [&](comm::Op op) { return plan::Traffic{delta[op].calls, delta[op].bytes}; };
    const Collectives used{of(comm::Op::all_reduce), of(comm::Op::all_gather), of(comm::Op::reduce_scatter)};
    other.calls += delta.total().calls - used.total().calls;
    other.bytes += delta.total().bytes - used.total().bytes;
    return used;
  }

 private:
  comm::Group group_;
  comm::Counters before_;
};

}  // namespace

TestCase plain_case(const Tokens& tokens) {
  return {"plain", tokens, nn::LossOptions(static_cast<double>(tokens.labels.numel()))};
}

TestCase training_case(const Tokens& tokens, uint64_t seed) {
  const int64_t s = tokens.labels.size(0), prompt = s / 4;
  const at::Tensor labels = tokens.labels.clone();
  labels.narrow(/*dim=*/0, /*start=*/0, prompt).fill_(nn::kIgnoreIndex);
  nn::LossOptions loss(static_cast<double>(2 * (s - prompt) * labels.size(1)));
  loss.label_smoothing = 0.1;
  loss.z_loss = 1e-2;  // large enough to show in every gradient
  return {.name = "training",
          .tokens = {tokens.ids, labels},
          .loss = loss,
          .dropout = 0.1,
          .attention_dropout = 0.1,
          .key = nn::masks_key(seed, /*step=*/0, /*micro_batch=*/0)};
}

std::string RunConfig::name(int tp) const {
  std::string name = "TP=" + std::to_string(tp) + (parallelism == Parallelism::tp ? "" : "+SP");
  if (device != "cpu") return name + " on " + device;
  if (column_input_storage == ColumnInputStorage::gathered) name += ", gathered input saved";
  if (column_input_storage == ColumnInputStorage::shard) name += ", gathered again in backward";
  if (recompute == plan::Recompute::full) name += ", full recomputation";
  if (recompute == plan::Recompute::selective) name += ", selective recomputation";
  return name;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "fp64" : dtype == at::kFloat ? "fp32" : "bf16";
}

plan::Workload workload_of(const config::Config& config, const TestCase& test_case,
                           const RunConfig& run_config, int tp) {
  return {.config = config,
          .tp = tp,
          .parallelism = run_config.parallelism,
          .sequence_length = test_case.tokens.ids.size(0),
          .batch_size = test_case.tokens.ids.size(1),
          .element_bytes = static_cast<int64_t>(c10::elementSize(run_config.dtype)),
          .column_input_storage = run_config.column_input_storage,
          .recompute = run_config.recompute,
          .has_label_smoothing = test_case.loss.label_smoothing > 0,
          .has_dropout = test_case.dropout > 0};
}

parallel::ParamSpecs specs_of(const DecoderWeights& weights, Parallelism parallelism) {
  return parallelism == Parallelism::tp ? weights.specs<nn::Invariant>()
                                        : weights.specs<nn::Sharded<nn::kSequence>>();
}

nn::Step make_step(const TestCase& test_case, const RunConfig& run_config, const comm::Group& group) {
  nn::Step step(group_for(group, run_config.column_input_storage), test_case.tokens.ids.size(0),
                test_case.key);
  step.save_for_backward = run_config.column_input_storage == ColumnInputStorage::gathered
                               ? parallel::SaveForBackward::gathered
                               : parallel::SaveForBackward::shard;
  step.dropout = test_case.dropout;
  step.attention_dropout = test_case.attention_dropout;
  step.recompute = run_config.recompute;
  return step;
}

Trace run_traced(const DecoderWeights& weights, const TestCase& test_case, const RunConfig& run_config) {
  for (const nn::UsedParameter& used : weights.used_parameters()) parallel::zero_grad_(*used.parameter);
  const comm::Group group = group_for(weights.group().with_new_counters(), run_config.column_input_storage);
  const nn::Step step = make_step(test_case, run_config, group);
  const parallel::ParamSpecs specs = specs_of(weights, run_config.parallelism);
  Trace trace;
  ActivationRecorder recorder;
  Meter meter(group);

  const at::Tensor loss = forward(weights, test_case, step, run_config.parallelism, recorder.observer());
  trace.loss = loss.item<double>();
  trace.sent.passes.forward = meter.read(trace.sent.other);
  loss.backward();
  trace.sent.passes.backward = meter.read(trace.sent.other);
  trace.norms.two = parallel::synced_norm_(specs, group);
  trace.sent.optimizer = meter.read(trace.sent.other);

  trace.norms.one = parallel::gradient_norm(specs, parallel::NormOrder::one, group);
  trace.norms.inf = parallel::gradient_norm(specs, parallel::NormOrder::inf, group);
  trace.activations = recorder.take();
  return trace;
}

double loss_of(const DecoderWeights& weights, const TestCase& test_case, const RunConfig& run_config) {
  const at::NoGradGuard no_grad;
  return forward(weights, test_case, make_step(test_case, run_config, weights.group()),
                 run_config.parallelism, {})
      .item<double>();
}

}  // namespace shardwise::doctor
