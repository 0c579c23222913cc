// The loss curve of a run does not depend on its ranks: on 1 to 4 of them, with tensor, sequence, data and
// pipeline parallelism, it stays as close to one rank's curve as runs on one rank whose weights change by
// their last bit before every step. These perturbed runs measure the effect of rounding.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/nextafter.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardwise/train/trainer.h"
#include "tests/support/extent.h"
#include "tests/support/tensors.h"
#include "tests/train/runs.h"

namespace shardwise::testing::curves_test {
namespace {

using Losses = std::vector<double>;

// Student's t with kPerturbedRuns degrees of freedom exceeds kTail with a probability below 10⁻⁵.
constexpr int kPerturbedRuns = 8;
constexpr double kTail = 10;
// Of all curves and steps together: three times what 30 steps (0.8) and 300 (0.9) show.
constexpr double kLargest = 2.7;

train::TrainOptions options_of(const Scratch& scratch) {
  train::TrainOptions options = small_options(scratch);
  options.steps = is_full() ? 500 : 30;
  options.grad_accum = 4;
  options.warmup = 10;
  options.lr = 3e-3;
  options.dropout = 0.1;
  return options;
}

// Replaces every weight by the next floating-point number above or below it.
void perturb_last_bits_(const model::DecoderWeights& weights, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    at::Tensor& value = used.parameter->value;
    const at::Tensor side = random_tensor(value.sizes().vec(), seed++, at::kFloat).sign() * INFINITY;
    value.copy_(at::nextafter(value, side));
  }
}

// Returns the losses of a run. A nonzero `seed` perturbs the weights' last bits before every step.
Losses losses_of(const train::TrainOptions& options, uint64_t seed = 0) {
  const train::Job job(options);
  Losses losses;
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    train::Trainer trainer(job, mesh);
    while (trainer.steps_done() < options.steps) {
      if (seed != 0) perturb_last_bits_(trainer.weights(), 1000000 * seed + 100 * trainer.steps_done());
      const double loss = trainer.step().loss;
      if (mesh.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

// How the ranks of a run are split.
struct RanksOfRun {
  int64_t dp, tp;
  bool sequence_parallel;
  int64_t pp = 1;

  std::string name() const {
    return (pp > 1 ? "PP " + std::to_string(pp) + " · " : "") +
           (dp > 1 ? "DP " + std::to_string(dp) + " · " : "") + "TP " + std::to_string(tp) +
           (sequence_parallel ? " + SP" : "");
  }
};

// TP and TP+SP on one replica, and data parallelism and two stages, each alone and with the others.
std::vector<RanksOfRun> all_ranks() {
  std::vector<RanksOfRun> all;
  for (const int64_t tp : {1, 2, 3, 4})
    for (const bool sequence_parallel : {false, true}) all.push_back({1, tp, sequence_parallel});
  all.insert(all.end(), {{2, 1, false}, {4, 1, false}, {2, 2, false}, {2, 2, true}});
  all.insert(all.end(), {{1, 1, false, 2}, {1, 2, true, 2}, {2, 1, false, 2}});
  return all;
}

// Returns the largest difference up to each step, since diverged curves may cross by chance.
Losses max_distance(const Losses& a, const Losses& b) {
  Losses largest(a.size());
  double so_far = 0;
  for (size_t i = 0; i < a.size(); ++i) largest[i] = so_far = std::max(so_far, std::abs(a[i] - b[i]));
  return largest;
}

// Returns the root mean square distance of the perturbed runs at each step.
Losses spread_of(const std::vector<Losses>& perturbed, const Losses& base) {
  Losses spread(base.size());
  for (const Losses& losses : perturbed) {
    const Losses distance = max_distance(losses, base);
    for (size_t i = 0; i < base.size(); ++i) spread[i] += distance[i] * distance[i] / perturbed.size();
  }
  for (double& square : spread) square = std::sqrt(square);
  return spread;
}

// Writes the data of docs/figures/curves.svg to the file that SHARDWISE_CURVES names, if it is set.
void write(const nlohmann::ordered_json& curves) {
  const char* path = std::getenv("SHARDWISE_CURVES");
  if (path == nullptr) return;
  std::ofstream file(path);
  file << curves;
  file.close();
  EXPECT_TRUE(file) << path << " cannot be written";
}

TEST(Curves, LossesOnAllRanksDifferOnlyByRounding) {
  const Scratch scratch;
  train::TrainOptions options = options_of(scratch);
  const Losses base = losses_of(options);
  EXPECT_LT(base.back(), base.front() - 0.3) << "nothing was learned";
  std::vector<Losses> perturbed;
  for (uint64_t seed = 1; seed <= kPerturbedRuns; ++seed) perturbed.push_back(losses_of(options, seed));
  const Losses spread = spread_of(perturbed, base);

  nlohmann::ordered_json curves = {{"spread", spread}, {"TP 1", base}};
  double largest = 0, of_spread = 0;
  for (const RanksOfRun& ranks : all_ranks()) {
    options.pp = ranks.pp, options.dp = ranks.dp, options.tp = ranks.tp,
    options.sequence_parallel = ranks.sequence_parallel;
    const Losses losses = losses_of(options);
    curves[ranks.name()] = losses;
    const Losses distance = max_distance(losses, base);
    for (size_t i = 0; i < base.size(); ++i) {
      // At least one rounding of the loss, for the first steps, in which the perturbed runs do not differ
      // yet.
      const double rounding = base[i] * 0x1p-24;
      ASSERT_LE(distance[i], kTail * std::max(spread[i], rounding)) << ranks.name() << ", step " << i + 1;
      of_spread = std::max(of_spread, distance[i] / std::max(spread[i], rounding));
    }
    largest = std::max(largest, distance.back());
  }
  write(curves);
  EXPECT_LE(of_spread, kLargest);
  std::printf(
      "covered: %zd loss curves of %ld steps, at most %.1e apart, %.1f times the effect of last bits\n",
      std::ssize(all_ranks()), static_cast<long>(options.steps), largest, of_spread);
}

}  // namespace
}  // namespace shardwise::testing::curves_test
