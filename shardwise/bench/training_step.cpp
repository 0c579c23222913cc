#include "shardwise/bench/training_step.h"

#include <ATen/ops/randint.h>

#include "shardwise/base/profile.h"
#include "shardwise/parallel/gradient_sync.h"

namespace shardwise::bench {
namespace {

constexpr double kLearningRate = 1e-4, kMaxNorm = 1;

/// Returns the same tokens on every rank.
at::Tensor random_ids(const config::Config& config, const StepShape& shape) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return at::randint(config.vocab_size, {shape.seq_len + 1, shape.batch_size}, generator, at::kLong);
}

/// True if the parameter is the weight of a product; a tied embedding is the head's.
bool is_multiplied(const parallel::Parameter& parameter, const config::Config& config) {
  const bool is_table = parameter.name.find("embed") != std::string::npos;
  const bool is_head =
      is_table && config.tie_word_embeddings && parameter.name == "model.embed_tokens.weight";
  return parameter.global_shape.size() == 2 && (!is_table || is_head);
}

const nn::UsedParameters& drawn_(model::DecoderWeights& weights) {
  weights.initialize_(/*seed=*/1);
  return weights.used_parameters();
}

}  // namespace

TrainingStep::TrainingStep(const config::Config& config, at::ScalarType dtype, const StepShape& shape,
                           const comm::Group& group)
    : shape_(shape),
      weights_(config, group, dtype),
      optimizer_(drawn_(weights_), {}),
      ids_(random_ids(config, shape)) {
  for (const nn::UsedParameter& used : weights_.used_parameters()) parallel::zero_grad_(*used.parameter);
}

void TrainingStep::run() {
  const base::ProfiledOp profiled("step");
  shape_.sequence_parallel ? run_on<nn::Sharded<nn::kSequence>>() : run_on<nn::Invariant>();
}

template <nn::ResidualStream Stream>
void TrainingStep::run_on() {
  const comm::Group& group = weights_.group();
  nn::Step step(group, shape_.seq_len);
  step.recompute = shape_.recompute;
  const double tokens = static_cast<double>(shape_.seq_len * shape_.batch_size);
  const nn::Placed<nn::Invariant> loss = model::Decoder<Stream>(weights_).loss(
      ids_.narrow(0, 0, shape_.seq_len), ids_.narrow(0, 1, shape_.seq_len), tokens, step);
  loss.local().backward();
  const double norm = parallel::synced_norm_(weights_.specs<Stream>(), group);
  optimizer_.step_and_zero_grad_(++steps_, kLearningRate, parallel::clip_scale(norm, kMaxNorm));
  loss_ = loss.local().item<double>();
}

int64_t TrainingStep::product_operations() const {
  int64_t elements = 0;
  for (const nn::UsedParameter& used : weights_.used_parameters()) {
    if (is_multiplied(*used.parameter, weights_.config())) elements += used.parameter->value.numel();
  }
  return 6 * elements * shape_.seq_len * shape_.batch_size;
}

int64_t TrainingStep::weight_bytes() const {
  int64_t bytes = 0;
  for (const nn::UsedParameter& used : weights_.used_parameters()) bytes += used.parameter->bytes();
  return bytes;
}

}  // namespace shardwise::bench
