// The loss of a run does not depend on how it is split: at 1 to 4 ranks, with and without sequence
// parallelism, its curve stays as close to that of one rank as the curves of runs on one rank do whose
// weights are moved by their last bit before every step. What rounding does is measured thus, not assumed.
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

// Student's t with so many degrees of freedom is more than kTail away with a probability below 10⁻⁵.
constexpr int kMoved = 8;
constexpr double kTail = 10;

train::Options options_of(const Scratch& scratch) {
  train::Options options = small_options(scratch);
  options.steps = is_full() ? 300 : 30;
  options.warmup = 10;
  options.lr = 3e-3;
  options.dropout = 0.1;
  return options;
}

// Every weight becomes the next number above or below it.
void move_last_bits_(const model::DecoderWeights& weights, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const nn::UsedParameter& role : weights.roles()) {
    at::Tensor& value = role.parameter->value;
    const at::Tensor side = random_tensor(value.sizes().vec(), seed++, at::kFloat).sign() * INFINITY;
    value.copy_(at::nextafter(value, side));
  }
}

// `seed`: moves the weights' last bits before every step; 0: leaves them.
Losses losses_of(const train::Options& options, uint64_t seed = 0) {
  const train::Job job(options);
  Losses losses;
  on_ranks(static_cast<int>(options.tp), [&](const comm::Group& group) {
    train::Trainer trainer(job, group);
    while (trainer.steps_done() < options.steps) {
      if (seed != 0) move_last_bits_(trainer.weights(), 1000000 * seed + 100 * trainer.steps_done());
      const double loss = trainer.step().loss;
      if (group.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

// The largest difference up to each step: once apart, curves may cross again by chance.
Losses apart(const Losses& a, const Losses& b) {
  Losses largest(a.size());
  double so_far = 0;
  for (size_t i = 0; i < a.size(); ++i) largest[i] = so_far = std::max(so_far, std::abs(a[i] - b[i]));
  return largest;
}

// At each step the root mean square over the moved runs.
Losses spread_of(const std::vector<Losses>& moved, const Losses& base) {
  Losses spread(base.size());
  for (const Losses& losses : moved) {
    const Losses distance = apart(losses, base);
    for (size_t i = 0; i < base.size(); ++i) spread[i] += distance[i] * distance[i] / moved.size();
  }
  for (double& square : spread) square = std::sqrt(square);
  return spread;
}

// What docs/curves.svg is drawn from, where SHARDWISE_CURVES names a file.
void write(const nlohmann::ordered_json& curves) {
  const char* path = std::getenv("SHARDWISE_CURVES");
  if (path == nullptr) return;
  std::ofstream file(path);
  file << curves;
  file.close();
  EXPECT_TRUE(file) << path << " cannot be written";
}

TEST(Curves, StayAsCloseAsRoundingLetsThemHoweverTheRunIsSplit) {
  const Scratch scratch;
  train::Options options = options_of(scratch);
  const Losses base = losses_of(options);
  EXPECT_LT(base.back(), base.front() - 0.3) << "nothing was learned";
  std::vector<Losses> moved;
  for (uint64_t seed = 1; seed <= kMoved; ++seed) moved.push_back(losses_of(options, seed));
  const Losses spread = spread_of(moved, base);

  nlohmann::ordered_json curves = {{"spread", spread}, {"TP 1", base}};
  double largest = 0, of_spread = 0;
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      options.tp = tp, options.sequence_parallel = sequence_parallel;
      const std::string name = "TP " + std::to_string(tp) + (sequence_parallel ? " + SP" : "");
      const Losses losses = losses_of(options);
      curves[name] = losses;
      const Losses distance = apart(losses, base);
      for (size_t i = 0; i < base.size(); ++i) {
        // Before anything was moved far enough to be seen, what one rounding of the loss is.
        const double rounding = base[i] * 0x1p-24;
        ASSERT_LE(distance[i], kTail * std::max(spread[i], rounding)) << name << ", step " << i + 1;
        of_spread = std::max(of_spread, distance[i] / std::max(spread[i], rounding));
      }
      largest = std::max(largest, distance.back());
    }
  }
  write(curves);
  std::printf("covered: 8 loss curves of %ld steps, at most %.1e apart, %.1f times what last bits do\n",
              static_cast<long>(options.steps), largest, of_spread);
}

}  // namespace
}  // namespace shardwise::testing::curves_test
