#include "tests/support/grid.h"

#include <ATen/ops/tensor.h>

namespace shardwise::testing {
namespace {

constexpr uint64_t kWeightSeed = 7;

Distance distance(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                  const Prepared& prepared) {
  const double size = prepared.problem.has_no_gradient(name) ? 1 : expected.norm().item<double>();
  const double off = (actual.to(at::kDouble) - expected).norm().item<double>();
  const bool is_fp64 = prepared.spread.empty();
  return {name, off / size, is_fp64 ? 1e-10 : kTail * prepared.spread.at(name) / size};
}

nn::Step step_of(const Prepared& prepared, const RunConfig& run, const comm::Group& group) {
  const Problem& problem = prepared.problem;
  nn::Step step = make_step(group, run.path, problem.sequence, prepared.key, problem.dropout);
  step.attention_dropout = problem.attention_dropout;
  step.valid = prepared.batch.valid;
  step.recompute = run.recompute;
  step.split_batch = run.split_batch;
  return step;
}

void freeze_(const model::DecoderWeights& weights, const Frozen& frozen) {
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (frozen.holds(used.parameter->name)) parallel::freeze_(*used.parameter);
  }
}

// Compares the unsharded gradients of all trained tensors, taken from their owners, with the reference and
// the replicas.
std::vector<Distance> gradient_distances(const model::DecoderWeights& weights, const Prepared& prepared,
                                         Board& board) {
  const Tensors& expected = prepared.expected.gradients;
  const comm::Group& group = weights.group();
  std::vector<Distance> distances;
  size_t index = 0, seen = 0;
  for_each_stored(weights, [&](size_t parameter, const model::StoredTensor& stored) {
    seen += expected.count(stored.name);
    const parallel::Parameter& local = *weights.used_parameters()[parameter].parameter;
    TORCH_CHECK(local.is_frozen() != local.main_grad.defined(), local.name, " has ",
                local.is_frozen() ? "a gradient" : "none");
    const bool is_other_ranks = static_cast<int>(index++ % group.size()) != group.rank();
    if (is_other_ranks || local.is_frozen()) return;
    const at::Tensor gradient = board.full(parameter, stored, Board::What::gradient);
    distances.push_back(distance(stored.name, gradient, expected.at(stored.name), prepared));
    const int differing = board.differing(gradient, parameter, stored, Board::What::gradient);
    distances.push_back({kReplicas, static_cast<double>(differing), 0});
  });
  TORCH_CHECK(seen == expected.size(), "the model has ", seen, " of ", expected.size(), " tensors");
  return distances;
}

}  // namespace

Prepared prepare(const Problem& problem, at::ScalarType dtype) {
  const config::Config config = problem.config();
  const auto key = kernels::RandomKey::of(5);
  Prepared prepared{problem, random_weights(config, kWeightSeed, dtype), problem.batch(), key, {}, {}};
  Tensors exact;
  for (const auto& [name, weight] : prepared.weights) {
    exact[name] = weight.detach().to(at::kDouble).clone().requires_grad_();
  }
  const Batch& batch = prepared.batch;
  const Masks masks =
      dropout_masks(config, batch, {problem.dropout, problem.attention_dropout}, key, at::kDouble);
  prepared.expected = reference_step(config, exact, batch, masks);
  if (dtype != at::kDouble) {
    prepared.spread = spread_of(config, exact, batch, masks, prepared.expected, dtype);
  }
  return prepared;
}

std::vector<Distance> distances(const Prepared& prepared, const RunConfig& run, const comm::Group& group,
                                Board& board) {
  const Problem& problem = prepared.problem;
  const ReferenceResult& expected = prepared.expected;
  model::DecoderWeights weights(problem.config(), group, prepared.weights.begin()->second.scalar_type());
  load_slices_(weights, prepared.weights);
  freeze_(weights, problem.frozen);
  zero_gradients_(weights);
  const nn::Step step = step_of(prepared, run, group);
  const StepResult result = forward_backward(weights, run.stream, prepared.batch, step);
  parallel::sync_gradients_(specs_of(weights, run.stream), step.group);

  board.publish(weights);
  std::vector<Distance> distances = gradient_distances(weights, prepared, board);
  board.retract(group);
  const at::Tensor loss = at::tensor(result.loss, at::kDouble);
  distances.push_back(distance(kLoss, loss, at::tensor(expected.loss, at::kDouble), prepared));
  if (!problem.frozen.holds("model.embed_tokens.weight"))
    distances.push_back(distance(kInput, result.input_gradient, expected.input_gradient, prepared));
  return distances;
}

}  // namespace shardwise::testing
