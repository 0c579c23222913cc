// Checkpoints do not depend on the number of ranks: two ranks train a decoder and save it; one rank loads its
// weights and optimizer and continues with the same loss.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/saved_state.h"

using at::Tensor;
using shardwise::comm::Group;
using shardwise::train::AdamW;
using Stream = shardwise::nn::Sharded<shardwise::nn::kSequence>;
namespace checkpoint = shardwise::checkpoint;
namespace config = shardwise::config;
namespace fs = std::filesystem;
namespace model = shardwise::model;
namespace parallel = shardwise::parallel;

constexpr int64_t s = 16, b = 2, kSteps = 5;

/// Performs optimizer step `number` and returns the loss before it.
double train_step(int64_t number, const model::DecoderWeights& weights, AdamW& optimizer, const Tensor& ids) {
  const shardwise::nn::Step step(weights.group(), s);
  for (const auto& used : weights.used_parameters()) parallel::zero_grad_(*used.parameter);
  const auto loss = model::Decoder<Stream>(weights).loss(ids, ids, s * b, step);
  loss.local().backward();
  parallel::sync_gradients_(weights.specs<Stream>(), weights.group());
  optimizer.step_(number, /*learning_rate=*/1e-2);
  return loss.local().item<double>();
}

/// Trains kSteps steps, saves, and returns the loss of the next step.
double train_and_save(const fs::path& directory, const Tensor& ids, const Group& group) {
  at::set_num_threads(1);
  model::DecoderWeights weights(config::preset("tiny"), group, at::kFloat);
  weights.initialize_(/*seed=*/1);
  AdamW optimizer(weights.used_parameters(), {});
  for (int64_t i = 1; i <= kSteps; ++i) train_step(i, weights, optimizer, ids);

  checkpoint::TrainState state;
  state.tensors = state_tensors(optimizer);
  state.step = kSteps;
  checkpoint::save(directory, weights, state, /*keep=*/1);
  return train_step(kSteps + 1, weights, optimizer, ids);
}

/// Loads the newest checkpoint and returns the losses of the next two steps.
std::pair<double, double> load_and_train(const fs::path& directory, const Tensor& ids, const Group& group) {
  const fs::path latest = checkpoint::resolve(directory);  // DIR/step-5, to which DIR/latest points
  model::DecoderWeights weights(config::load_config(latest), group, at::kFloat);
  checkpoint::load_weights(latest, weights);
  AdamW optimizer(weights.used_parameters(), {});
  checkpoint::TrainState state;
  state.tensors = state_tensors(optimizer);  // load_state writes into the optimizer's tensors
  checkpoint::load_state(latest, state, weights);

  const double first = train_step(state.step + 1, weights, optimizer, ids);
  return {first, train_step(state.step + 2, weights, optimizer, ids)};
}

int main() {
  at::manual_seed(1);
  const Tensor ids = at::randint(256, {s, b}, at::kLong);
  const std::string job = "save-and-load-" + std::to_string(getpid());
  const fs::path directory = fs::temp_directory_path() / job;
  const auto on_rank = [&](int rank) {
    return train_and_save(directory, ids, shardwise::comm::shm::connect({job, rank, /*size=*/2}));
  };
  std::thread peer(on_rank, 1);
  const double saved = on_rank(0);
  peer.join();
  const auto [loaded, next] = load_and_train(directory, ids, Group());
  fs::remove_all(directory);
  std::printf("step %ld: loss %.6f on two ranks, %.6f on one that loaded\n", kSteps + 1, saved, loaded);
  return std::abs(saved - loaded) < 1e-4 && next < loaded ? 0 : 1;
}
