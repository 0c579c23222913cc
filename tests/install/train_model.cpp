// Trains the model of model.h on one rank, on two with TP and on two with TP+SP, from the same initial
// weights, and compares losses and weights. The two ranks are processes that this program starts.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdio>

#include "model.h"
#include "shardwise/launch/launch.h"
#include "shardwise/launch/process_group.h"
#include "shardwise/parallel/gradient_sync.h"
#include "shardwise/version.h"

using at::Tensor;
using shardwise::comm::Group;
using namespace consumer;
namespace launch = shardwise::launch;
namespace parallel = shardwise::parallel;

constexpr int64_t s = 15, b = 8;
constexpr int kSteps = 20;

/// Returns [s + 1, b] ids: arithmetic sequences modulo the vocabulary.
Tensor sequences(int64_t number, int64_t vocab) {
  const Tensor ids = at::empty({s + 1, b}, at::kLong);
  for (int64_t j = 0; j < b; ++j) {
    for (int64_t i = 0; i <= s; ++i) ids[i][j] = (7 * number + 5 * j + i * (1 + j % 3)) % vocab;
  }
  return ids;
}

void gradient_descent_(const UsedParameters& parameters, double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, use] : parameters) {
    parameter->value.sub_(parameter->main_grad, learning_rate);
  }
}

/// Performs one optimizer step and returns the loss before it.
template <ResidualStream Stream>
double train_step(const Model& model, const Tensor& ids, const Group& group) {
  const UsedParameters parameters = model.parameters();
  for (const auto& [parameter, use] : parameters) parallel::zero_grad_(*parameter);
  const Step step(group, s);
  const Placed<Invariant> loss = model.loss<Stream>(ids.narrow(0, 0, s), ids.narrow(0, 1, s), step);
  loss.local().backward();
  const parallel::ParamSpecs specs = specs_of<Stream>(parameters);
  const double norm = parallel::synced_norm_(specs, group);  // once per step, after all micro-batches
  parallel::clip_gradients_(specs, norm, /*max_norm=*/1);
  gradient_descent_(parameters, /*learning_rate=*/0.5);
  return loss.local().item<double>();
}

/// Returns the full tensor of a sharded parameter: every rank adds the slices that it owns.
Tensor unsharded(const parallel::Parameter& parameter, const Group& group) {
  const ShardRule& rule = parameter.rule;
  if (rule.is_replicated()) return parameter.value.detach();
  const Tensor full = at::zeros(parameter.global_shape);
  for (const auto& [global, local, size] : rule.owned_pieces(group.rank())) {
    full.narrow(rule.dim, global, size).copy_(parameter.value.detach().narrow(rule.dim, local, size));
  }
  return group.all_reduce(full);
}

struct Run {
  std::vector<double> losses;
  std::vector<Tensor> weights;
};

template <ResidualStream Stream>
Run train(const Group& group) {
  const Sizes sizes;
  const Model model(sizes, group);
  for (const auto& [parameter, use] : model.parameters()) {  // ranks draw slices of the same values
    parallel::initialize_(*parameter, shardwise::kernels::RandomKey::of(1), group);
  }
  Run run;
  for (int i = 0; i < kSteps; ++i) {
    run.losses.push_back(train_step<Stream>(model, sequences(i, sizes.vocab), group));
  }
  for (const auto& [parameter, use] : model.parameters()) {
    run.weights.push_back(unsharded(*parameter, group).clone());
  }
  return run;
}

/// Returns true if both runs have the same losses and weights up to rounding, and learned.
bool agree(const char* name, const Run& run, const Run& reference) {
  double largest = std::abs(run.losses.front() - reference.losses.front());
  for (size_t i = 0; i < run.weights.size(); ++i) {
    const Tensor difference = run.weights[i] - reference.weights[i];
    largest = std::max(largest, (difference.norm() / reference.weights[i].norm()).item<double>());
  }
  std::printf("%-5s: loss %.4f, after %d steps %.4f; largest difference from one rank %.0e\n", name,
              run.losses.front(), kSteps, run.losses.back(), largest);
  return largest < 1e-4 && run.losses.back() < 0.9 * run.losses.front();
}

int main(int argc, char** argv) {
  const launch::LaunchContext context = launch::launch_context_from_env();
  if (context.launcher == launch::LaunchContext::Launcher::self) {
    std::printf("shardwise %s\n", SHARDWISE_VERSION);
    std::fflush(stdout);
    return launch::launch_ranks(2, {argv, argv + argc});
  }
  const Group group = launch::init_process_group(context);
  at::set_num_threads(launch::bind_to_core_share(group));

  const Run one = train<Invariant>(Group());
  const bool tp = agree("TP", train<Invariant>(group), one);
  const bool sp = agree("TP+SP", train<Sharded<kSequence>>(group), one);
  return tp && sp ? 0 : launch::kCheckFailedExitCode;
}
