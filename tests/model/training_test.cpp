// Fifty AdamW steps with clipping: replicas stay equal in every bit, and the run matches the unsharded
// reference.
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/train/optimizer.h"
#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/reference_optimizer.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::training_test {
namespace {

constexpr int64_t kSteps = 50, kSequence = 5, kBatchSize = 2;
constexpr double kLearningRate = 1e-2, kMaxNorm = 1, kDropout = 0.1;

// Odd sizes, so that the replicas of a KV head have different positions in a vector register on different
// ranks.
config::Config config(int64_t heads, int64_t kv_heads) {
  config::Config config = small_config();
  config.hidden_size = 21;
  config.intermediate_size = 33;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 6;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  return config;
}

Batch batch_of(const config::Config& config, int64_t step) {
  return random_batch(config, kSequence, kBatchSize, step);
}
kernels::RandomKey key_of(int64_t step) {
  return kernels::RandomKey::of(5).fold(step);
}

struct History {
  std::vector<double> losses, norms;
  Tensors weights;
};

History reference_run(const config::Config& config) {
  History history{{}, {}, random_weights(config, 1, at::kDouble)};
  ReferenceAdamW optimizer({0.9, 0.95, 1e-8, 0.1});
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Masks masks = dropout_masks(config, batch_of(config, step), {kDropout}, key_of(step), at::kDouble);
    ReferenceResult result = reference_step(config, history.weights, batch_of(config, step), masks);
    history.losses.push_back(result.loss);
    history.norms.push_back(reference_norm(result.gradients, 2));
    reference_clip_(result.gradients, history.norms.back(), kMaxNorm);
    optimizer.step_(history.weights, result.gradients, step, kLearningRate);
  }
  return history;
}

// Returns the full weights that this rank checks, distributed over the ranks. Fails if the replicas of an
// element differ.
Tensors checked_weights(const model::DecoderWeights& weights, Board& board) {
  board.publish(weights);
  Tensors full;
  int next = 0;
  for_each_stored(weights, [&](size_t parameter, const model::StoredTensor& stored) {
    if (next++ % weights.group().size() != weights.group().rank()) return;
    const at::Tensor& weight = full[stored.name] = board.full(parameter, stored, Board::What::value);
    EXPECT_EQ(board.differing(weight, parameter, stored, Board::What::value), 0) << stored.name;
  });
  board.retract(weights.group());
  return full;
}

// Runs the training on `group` and calls `check` with the loss and norm of each step. Returns the weights
// that this rank checks.
Tensors sharded_run(const config::Config& config, const Tensors& initial, at::ScalarType dtype, Stream stream,
                    const comm::Group& group, Board& board,
                    const std::function<void(int64_t step, double loss, double norm)>& check) {
  model::DecoderWeights weights(config, group, dtype);
  load_slices_(weights, initial);
  train::AdamW optimizer(weights.used_parameters(), train::AdamWOptions{0.9, 0.95, 1e-8, 0.1});
  Tensors checked;
  for (int64_t step = 1; step <= kSteps; ++step) {
    zero_gradients_(weights);
    const nn::Step nn_step = make_step(group, Path::symmetric, kSequence, key_of(step), kDropout);
    const double loss = forward_backward(weights, stream, batch_of(config, step), nn_step).loss;
    const parallel::ParamSpecs specs = specs_of(weights, stream);
    parallel::sync_gradients_(specs, group);
    const double norm = parallel::gradient_norm(specs, parallel::NormOrder::two, group);
    optimizer.step_(step, kLearningRate, parallel::clip_scale(norm, kMaxNorm));
    check(step, loss, norm);
    checked = checked_weights(weights, board);
  }
  return checked;
}

struct Shape {
  int64_t heads, kv_heads;
};

TEST(Training, FiftyStepsMatchTheReferenceAndReplicasStayEqual) {
  for (const Shape& shape : {Shape{6, 3}, {5, 1}}) {
    const config::Config model = config(shape.heads, shape.kv_heads);
    const Tensors initial = random_weights(model, 1, at::kDouble);
    const History expected = reference_run(model);
    for (const int ranks : {1, 2, 3, 4}) {
      Board board(ranks);
      on_ranks(ranks, [&](const comm::Group& group) {
        for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
          const auto check = [&](int64_t step, double loss, double norm) {
            const double expected_loss = expected.losses[step - 1], expected_norm = expected.norms[step - 1];
            EXPECT_LE(std::abs(loss - expected_loss), 1e-10 * expected_loss)
                << "step " << step << " on " << ranks;
            EXPECT_LE(std::abs(norm - expected_norm), 1e-10 * expected_norm)
                << "step " << step << " on " << ranks;
          };
          const Tensors checked = sharded_run(model, initial, at::kDouble, stream, group, board, check);
          for (const auto& [name, weight] : checked) {
            EXPECT_LE(relative_error(weight, expected.weights.at(name)), 1e-10) << name << " on " << ranks;
          }
        }
      });
    }
  }
}

TEST(Training, ReplicasStayEqualInFp32AndBf16) {
  const config::Config model = config(6, 3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors initial = random_weights(model, 1, dtype);
    for (const int ranks : {2, 4}) {
      Board board(ranks);
      on_ranks(ranks, [&](const comm::Group& group) {
        for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
          double last_loss = 0;
          const auto check = [&](int64_t, double loss, double norm) {
            EXPECT_TRUE(std::isfinite(loss) && norm > 0);
            last_loss = loss;
          };
          sharded_run(model, initial, dtype, stream, group, board, check);
          EXPECT_GT(last_loss, 0);
        }
      });
    }
  }
}

}  // namespace
}  // namespace shardwise::testing::training_test
