// Tests that the grid does not contain: initialization, inference, accumulation over micro-batches, empty
// shards and rejected arguments.
#include "shardwise/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/error_text.h"
#include "tests/support/grid.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::decoder_test {
namespace {

using at::Tensor;
using nn::Invariant;
using nn::kSequence;
using nn::Placed;
using nn::Sharded;

const Problem kProblem{{"6 over 3", 6, 3}, 17, 5, 32, 0.0, /*is_tied=*/false};

Tensors gathered(const model::DecoderWeights& weights, Board& board, Board::What what) {
  board.publish(weights);
  Tensors full;
  for_each_stored(weights, [&](size_t parameter, const model::StoredTensor& stored) {
    full[stored.name] = board.full(parameter, stored, what);
    EXPECT_EQ(board.differing(full[stored.name], parameter, stored, what), 0) << stored.name;
  });
  board.retract(weights.group());
  return full;
}

Tensors initialized(const config::Config& config, const comm::Group& group, Board& board, uint64_t seed) {
  model::DecoderWeights weights(config, group, at::kFloat);
  weights.initialize_(seed);
  return gathered(weights, board, Board::What::value);
}

TEST(DecoderWeights, InitializationIsIndependentOfTheTpSize) {
  const config::Config config = kProblem.config();
  Board alone(1);
  const Tensors expected = initialized(config, comm::Group(), alone, 3);
  EXPECT_EQ(expected.size(), stored_shapes(config).size());
  for (const int ranks : {1, 2, 3, 4}) {
    Board board(ranks);
    on_ranks(ranks, [&](const comm::Group& group) {
      for (const auto& [name, full] : initialized(config, group, board, 3)) {
        EXPECT_TRUE(same_bits(full, expected.at(name))) << name << " on " << ranks;
      }
    });
  }
}

TEST(DecoderWeights, InitializationHasTheDocumentedDistribution) {
  config::Config config = kProblem.config();
  config.hidden_size = 128;
  config.initializer_range = 0.05;
  Board board(1);
  const Tensors full = initialized(config, comm::Group(), board, 3),
                other = initialized(config, comm::Group(), board, 4);
  for (const auto& [name, weight] : full) {
    const bool is_norm = name.find("norm") != std::string::npos,
               is_bias = name.find("bias") != std::string::npos;
    if (is_norm || is_bias) {
      EXPECT_TRUE(weight.eq(is_norm ? 1 : 0).all().item<bool>()) << name;
      continue;
    }
    const bool is_on_residual =
        name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
    const double std = is_on_residual ? 0.05 / std::sqrt(2.0 * config.num_hidden_layers) : 0.05;
    const double drawn = std::sqrt(weight.square().mean().item<double>());
    EXPECT_NEAR(drawn, std, 5 * std / std::sqrt(2.0 * weight.numel())) << name;
    EXPECT_FALSE(same_bits(weight, other.at(name))) << name << " does not depend on the seed";
  }
}

TEST(DecoderWeights, ContainEveryParameterOnce) {
  for (const bool is_tied : {false, true}) {
    Problem problem = kProblem;
    problem.is_tied = is_tied;
    const config::Config config = problem.config();
    const model::DecoderWeights weights(config, comm::Group(), at::kFloat);
    std::set<std::string> names;
    int64_t numel = 0;
    for (const nn::UsedParameter& used : weights.used_parameters()) {
      EXPECT_TRUE(names.insert(used.parameter->name).second) << used.parameter->name << " twice";
      numel += used.parameter->global_numel();
    }
    EXPECT_EQ(numel, config::parameter_count(config));
  }
}

TEST(DecoderWeights, RejectMoreRanksThanQueryHeads) {
  config::Config config = kProblem.config();
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), {2, 1}, {3, 3}}) {
    config.num_attention_heads = heads;
    config.num_key_value_heads = kv_heads;
    EXPECT_NO_THROW(config::make_layout(config, heads));
    EXPECT_THROW(config::make_layout(config, heads + 1), c10::ValueError);
    EXPECT_THROW(config::make_layout(config, 0), c10::ValueError);
    on_ranks(4, [&](const comm::Group& group) {
      EXPECT_THROW(model::DecoderWeights(config, group, at::kFloat), c10::ValueError) << heads;
    });
  }
}

// Fewer vocabulary rows, ffn columns and positions than ranks.
TEST(Decoder, SupportsEmptyShards) {
  Problem problem{{"MHA", 4, 4}, 3, 2, 3, 0.1, /*is_tied=*/true};
  for (const bool is_tied : {false, true}) {
    problem.is_tied = is_tied;
    const Prepared prepared = prepare(problem, at::kDouble);
    Board board(4);
    on_ranks(4, [&](const comm::Group& group) {
      for (const RunConfig& run : run_configs()) {
        for (const Distance& distance : distances(prepared, run, group, board)) {
          EXPECT_LE(distance.error, 1e-10) << distance.what << "; " << run.name();
        }
      }
    });
  }
}

template <nn::ResidualStream Stream>
void check_logits(const model::DecoderWeights& weights, const Prepared& prepared, const comm::Group& group) {
  const nn::Step step(group, prepared.problem.sequence);
  const model::Decoder<Stream> model(weights);
  const Tensor with = model.logits(prepared.batch.ids, step).local();
  const at::NoGradGuard no_grad;
  const Tensor without = model.logits(prepared.batch.ids, step).local();
  EXPECT_FALSE(without.requires_grad());
  EXPECT_TRUE(same_bits(with.detach(), without)) << "training and inference differ";
  const Tensor expected = slice_of(prepared.expected.logits, weights.layout().vocab, -1, group.rank());
  EXPECT_LE(relative_error(without, expected), 1e-12);
  const Batch& batch = prepared.batch;
  const Tensor loss = model.loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  EXPECT_NEAR(loss.item<double>(), prepared.expected.loss, 1e-12);
}

TEST(Decoder, InferenceLogitsEqualTrainingLogits) {
  const Prepared prepared = prepare(kProblem, at::kDouble);
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const comm::Group& ranks_group) {
      for (const comm::Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) {
        model::DecoderWeights weights(kProblem.config(), group, at::kDouble);
        load_slices_(weights, prepared.weights);
        check_logits<Invariant>(weights, prepared, group);
        check_logits<Sharded<kSequence>>(weights, prepared, group);
      }
    });
  }
}

// main_grad accumulates gradients of micro-batches with different sequence lengths.
TEST(Decoder, MicroBatchesAccumulate) {
  Problem longer = kProblem;
  longer.sequence = 7;
  const Prepared first = prepare(kProblem, at::kDouble), second = prepare(longer, at::kDouble);
  const Batch& batch = second.batch;
  const ReferenceResult other = reference_step(longer.config(), first.weights, batch, {});
  for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
    Board board(3);
    on_ranks(3, [&](const comm::Group& group) {
      model::DecoderWeights weights(kProblem.config(), group, at::kDouble);
      load_slices_(weights, first.weights);
      zero_gradients_(weights);
      const auto key = kernels::RandomKey::of(0);
      forward_backward(weights, stream, first.batch, make_step(group, Path::symmetric, 5, key, 0));
      forward_backward(weights, stream, batch, make_step(group, Path::symmetric, 7, key, 0));
      parallel::sync_gradients_(specs_of(weights, stream), group);
      for (const auto& [name, gradient] : gathered(weights, board, Board::What::gradient)) {
        EXPECT_LE(relative_error(gradient, first.expected.gradients.at(name) + other.gradients.at(name)),
                  1e-12)
            << name;
      }
    });
  }
}

template <nn::ResidualStream Stream>
void check_rejected(const model::DecoderWeights& weights, const Prepared& prepared, const nn::Step& step) {
  const comm::Counters before = step.group.counters();
  EXPECT_THROW(model::Decoder<Stream>(weights).logits(prepared.batch.ids, step), c10::ValueError);
  EXPECT_EQ((step.group.counters() - before).total().calls, 0);
}

TEST(Decoder, RejectsAnInvalidStepBeforeCommunicating) {
  const Prepared prepared = prepare(kProblem, at::kDouble);
  const std::vector<void (*)(nn::Step&)> invalidations = {
      [](nn::Step& step) {
        step.valid = {{0, 5}};
      },
      [](nn::Step& step) {
        step.valid = {{0, 5}, {0, 6}};
      },
      [](nn::Step& step) { step.dropout = 1.5; },
      [](nn::Step& step) { step.attention_dropout = 1; },
      [](nn::Step& step) { step.attention_dropout = std::nan(""); },
  };
  on_ranks(2, [&](const comm::Group& group) {
    model::DecoderWeights weights(kProblem.config(), group, at::kDouble);
    load_slices_(weights, prepared.weights);
    for (const auto invalidate_ : invalidations) {
      nn::Step step(group, kProblem.sequence);
      invalidate_(step);
      check_rejected<Invariant>(weights, prepared, step);
      check_rejected<Sharded<kSequence>>(weights, prepared, step);
    }
  });
}

/// Checks that a step with verification that differs on rank 1 is reported on both ranks.
template <class Stream>
void expect_inputs_verified(const model::DecoderWeights& weights, const Batch& batch, const nn::Step& step) {
  const model::Decoder<Stream> model(weights);
  const auto error = [&](const Batch& local, const nn::Step& local_step) {
    return test::error_text<c10::Error>(
        [&] { model.loss(local.ids, local.labels, static_cast<double>(batch.valid_tokens), local_step); });
  };
  const int64_t rank = weights.group().rank();
  const auto differs = [](const std::string& what) {
    return "verify: " + what + " must be equal on every rank; it differs from rank 0's on 1 of 2 ranks";
  };
  EXPECT_NO_THROW(model.loss(batch.ids, batch.labels, static_cast<double>(batch.valid_tokens), step));
  Batch other_ids = batch, other_labels = batch;
  other_ids.ids = (batch.ids + rank) % kProblem.config().vocab_size;
  EXPECT_EQ(error(other_ids, step), differs("the token ids"));
  other_labels.labels = (batch.labels + rank) % kProblem.config().vocab_size;
  EXPECT_EQ(error(other_labels, step), differs("the labels"));
  nn::Step other_key = step;
  other_key.key = kernels::RandomKey::of(static_cast<uint64_t>(rank));
  EXPECT_EQ(error(batch, other_key), differs("the random key"));
}

TEST(Decoder, VerifyDetectsARankWithOtherInputs) {
  const Prepared prepared = prepare(kProblem, at::kDouble);
  on_ranks(2, [&](const comm::Group& group) {
    model::DecoderWeights weights(kProblem.config(), group, at::kDouble);
    load_slices_(weights, prepared.weights);
    nn::Step step(group, kProblem.sequence);
    step.verify = parallel::Verify::on;
    const at::NoGradGuard no_grad;
    expect_inputs_verified<Invariant>(weights, prepared.batch, step);
    expect_inputs_verified<Sharded<kSequence>>(weights, prepared.batch, step);
  });
}

TEST(Decoder, VerifyDetectsARankWithDifferentWeights) {
  const Prepared prepared = prepare(kProblem, at::kDouble);
  on_ranks(2, [&](const comm::Group& group) {
    model::DecoderWeights weights(kProblem.config(), group, at::kDouble);
    load_slices_(weights, prepared.weights);
    nn::Step step(group, kProblem.sequence);
    step.verify = parallel::Verify::on;
    const at::NoGradGuard no_grad;
    const model::Decoder<Invariant> model(weights);
    EXPECT_NO_THROW(model.logits(prepared.batch.ids, step));
    for (const nn::UsedParameter& used : weights.used_parameters()) {
      if (used.parameter->name == "model.layers.0.input_layernorm.weight")
        used.parameter->value.add_(group.rank());
    }
    EXPECT_THROW(model.logits(prepared.batch.ids, step), c10::Error);
  });
}

}  // namespace
}  // namespace shardwise::testing::decoder_test
