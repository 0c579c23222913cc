// A training loop from the library's parts: a small decoder learns to continue arithmetic sequences such as
// 3 7 11 15 ..., on one rank and on two ranks with sequence parallelism, from the same initial weights.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <thread>

#include "shardwise/comm/shm/shm.h"
#include "shardwise/model/decoder.h"
#include "shardwise/train/optimizer.h"

using at::Tensor;
using shardwise::comm::Group;
using Stream = shardwise::nn::Sharded<shardwise::nn::kSequence>;  // nn::Invariant would be TP without SP
namespace config = shardwise::config;
namespace model = shardwise::model;
namespace parallel = shardwise::parallel;

constexpr int64_t s = 15, b = 16, kVocab = 23;
constexpr int kSteps = 120;

config::Config small_decoder() {
  config::Config c;
  c.vocab_size = kVocab, c.hidden_size = 48, c.intermediate_size = 100, c.num_hidden_layers = 2;
  c.num_attention_heads = 6, c.num_key_value_heads = 3, c.head_dim = 8, c.max_position_embeddings = s;
  return c;
}

/// Returns [s + 1, b] ids: each sequence has a pseudo-random start and a step of 1 to 6, modulo the
/// vocabulary.
Tensor sequences(int64_t number) {
  const Tensor ids = at::empty({s + 1, b}, at::kLong);
  for (int64_t j = 0; j < b; ++j) {
    const int64_t hash = (number * b + j) * 2654435761 % 4294967296 >> 8;  // Knuth's multiplicative hash
    for (int64_t i = 0; i <= s; ++i) ids[i][j] = (hash + i * (1 + hash % 6)) % kVocab;
  }
  return ids;
}

double train_step(int64_t number, const model::DecoderWeights& weights, shardwise::train::AdamW& optimizer) {
  const Group& group = weights.group();
  for (const auto& used : weights.used_parameters()) parallel::zero_grad_(*used.parameter);
  const Tensor ids = sequences(number);
  const shardwise::nn::Step step(group, s);
  const auto loss =
      model::Decoder<Stream>(weights).loss(ids.narrow(0, 0, s), ids.narrow(0, 1, s), s * b, step);
  loss.local().backward();
  const parallel::ParamSpecs specs = weights.specs<Stream>();
  parallel::sync_gradients_(specs, group);  // once per step, after all micro-batches
  const double norm = parallel::gradient_norm(specs, parallel::NormOrder::two, group);
  optimizer.step_(number, /*learning_rate=*/4e-3, parallel::clip_scale(norm, /*max_norm=*/1));
  return loss.local().item<double>();
}

std::vector<double> train(const Group& group) {
  at::set_num_threads(1);
  model::DecoderWeights weights(small_decoder(), group, at::kFloat);
  weights.initialize_(/*seed=*/1);
  shardwise::train::AdamW optimizer(weights.used_parameters(), {});
  std::vector<double> losses;
  for (int step = 1; step <= kSteps; ++step) losses.push_back(train_step(step, weights, optimizer));
  return losses;
}

int main() {
  const std::string job = "training-loop-" + std::to_string(getpid());
  std::vector<double> one = train(Group()), two;
  std::thread peer([&] { train(shardwise::comm::shm::connect({job, /*rank=*/1, /*size=*/2})); });
  two = train(shardwise::comm::shm::connect({job, /*rank=*/0, /*size=*/2}));
  peer.join();
  for (int i = 0; i < kSteps; i += i == 0 ? 19 : 20)
    std::printf("step %3d: loss %.5f on one rank, %.5f on two\n", i + 1, one[i], two[i]);
  const bool passed = std::abs(one[0] - two[0]) < 1e-5 && two.back() < one.front() / 2;
  return passed ? 0 : 1;
}
