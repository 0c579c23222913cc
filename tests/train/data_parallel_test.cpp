// Steps of replicas that are split over tensor-parallel ranks, against those of one rank, in fp64.
#include <cstdio>

#include "tests/parallel/late_backend.h"
#include "tests/support/error_text.h"
#include "tests/train/one_rank.h"

namespace shardwise::train::data_parallel_test {
namespace {

using testing::expect_steps_of;
using testing::kExact;
using testing::on_run_ranks;
using testing::Reference;
using testing::reference_of;
using testing::run_job;
using testing::Scratch;
using testing::TestRun;

constexpr int kMostRanks = 8;

/// Returns three steps of five micro-batches of a model with uneven shards and replicated KV heads.
TrainOptions run_options(const Scratch& scratch) {
  TrainOptions options = testing::small_options(scratch);
  config::Config config = testing::small_byte_config();
  config.num_attention_heads = kMostRanks;
  config.num_key_value_heads = 2;
  options.model_config = scratch.put("model.json", config::to_json(config));
  options.dtype = "fp64";
  options.grad_accum = 5;
  options.steps = 3;
  options.dropout = options.attention_dropout = 0.1;
  options.clip_grad = 0.5;
  return options;
}

/// What replicas split, and whether they share the weights.
struct Splitting {
  int64_t zero;
  const char* shared_weights;
};
constexpr Splitting kSplittings[] = {{0, "off"}, {1, "off"},  {1, "auto"},
                                     {2, "off"}, {2, "auto"}, {3, "auto"}};

void apply(const Splitting& splitting, TrainOptions& options) {
  options.zero = splitting.zero;
  options.shared_weights = splitting.shared_weights;
}

TEST(DataParallel, EveryMeshHasTheStepsOfOneRank) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const Reference reference = reference_of(options);
  EXPECT_GT(reference.records[0].grad_norm, 2 * options.clip_grad) << "no gradient was clipped";
  int compared = 0;
  for (options.dp = 1; options.dp <= kMostRanks; ++options.dp) {
    for (options.tp = 1; options.ranks() <= kMostRanks; ++options.tp) {
      for (const bool sequence_parallel : {true, false}) {
        if (options.tp == 1 && !sequence_parallel) continue;
        options.sequence_parallel = sequence_parallel;
        for (const Splitting& splitting : kSplittings) {
          if (options.dp == 1 && splitting.zero > 0) continue;
          apply(splitting, options);
          SCOPED_TRACE("dp " + std::to_string(options.dp) + " tp " + std::to_string(options.tp) + " zero " +
                       std::to_string(splitting.zero) + " shared weights " + splitting.shared_weights);
          expect_steps_of(reference, options);
          ++compared;
        }
      }
    }
  }
  std::printf("covered: %d runs on meshes of 1 to 8 ranks\n", compared);
}

TEST(DataParallel, AnyNumberOfMicroBatchesIsDealt) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  for (const int64_t micro_batches : {1, 2, 3, 4, 5}) {  // 1: two of three replicas have none
    options.grad_accum = micro_batches;
    options.dp = options.tp = 1;
    const Reference reference = reference_of(options);
    for (options.dp = 2; options.dp <= 4; ++options.dp) {
      SCOPED_TRACE(std::to_string(micro_batches) + " over dp " + std::to_string(options.dp));
      options.tp = options.dp == 4 ? 1 : 2;
      apply(kSplittings[(micro_batches + options.dp) % std::size(kSplittings)], options);
      expect_steps_of(reference, options);
    }
  }
}

TEST(DataParallel, FrozenAndTiedParametersTrainAsOnOneRank) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.model_config.reset();
  config::Config config = testing::small_byte_config();
  config.tie_word_embeddings = true;
  options.model_config = scratch.put("tied.json", config::to_json(config));
  for (const std::vector<std::string>& freeze :
       {std::vector<std::string>{}, {"model.layers.0.*"}, {"*proj*", "model.embed_tokens.weight"}}) {
    options.freeze = freeze;
    options.dp = options.tp = 1;
    const Reference reference = reference_of(options);
    options.dp = 3, options.tp = 2;
    options.verify = true;  // compares all weights and gradients over replicas in every step
    for (const Splitting& splitting : kSplittings) {
      apply(splitting, options);
      expect_steps_of(reference, options);
    }
    options.verify = false;
  }
}

TEST(DataParallel, ShardedGradientsAreThoseOfOneRankHoweverBackwardRuns) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const Reference reference = reference_of(options);
  options.dp = 2, options.tp = 2;
  apply({2, "auto"}, options);
  options.verify = true;
  for (const char* recompute : {"none", "selective", "full"}) {
    for (const char* overlap : {"on", "off"}) {
      for (const bool sequence_parallel : {true, false}) {
        options.recompute = recompute;
        options.overlap = overlap;
        options.sequence_parallel = sequence_parallel;
        SCOPED_TRACE(std::string("recompute ") + recompute + " overlap " + overlap +
                     (sequence_parallel ? " TP+SP" : " TP"));
        expect_steps_of(reference, options);
      }
    }
  }
}

TEST(DataParallel, EvaluatesAndResumesOnAnyMesh) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.val_fraction = 0.3;
  options.eval_batches = 3;
  options.eval_every = 1;
  options.steps = 4;
  const TestRun reference = run_job(options);
  const auto expect_equal = [&](const StepRecord& record) {
    const StepRecord& expected = reference.records.at(static_cast<size_t>(record.step - 1));
    EXPECT_NEAR(record.loss, expected.loss, kExact * expected.loss);
    EXPECT_NEAR(record.val_loss.value(), expected.val_loss.value(), kExact * expected.loss);
  };
  options.save = scratch / "saved";
  options.dp = 2, options.tp = 2;
  options.stop_after = 2;
  for (const StepRecord& record : run_job(options).records) expect_equal(record);
  options.stop_after.reset();
  options.resume = options.save;
  options.model_config.reset();
  options.dtype.reset();
  options.save.reset();
  // Some replicas have a validation batch less than others.
  for (const auto& [dp, tp, zero] : {std::tuple(1, 1, 1), std::tuple(3, 1, 1), std::tuple(2, 3, 1),
                                     std::tuple(2, 3, 3), std::tuple(4, 1, 3), std::tuple(3, 1, 3)}) {
    SCOPED_TRACE("resumed at dp " + std::to_string(dp) + " tp " + std::to_string(tp) + " zero " +
                 std::to_string(zero));
    options.dp = dp, options.tp = tp, options.zero = zero;
    const TestRun resumed = run_job(options);
    ASSERT_EQ(resumed.records.size(), 2u);
    for (const StepRecord& record : resumed.records) expect_equal(record);
  }
}

// A block's MLP leaves its sum to the next block's norm, which adds its bias: on a backend that works beside
// the computation the next gather must not write over that bias.
TEST(DataParallel, EvaluatesShardedWeightsOverALateBackend) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  config::Config config = testing::small_byte_config();
  config.num_hidden_layers = 4;
  config.num_key_value_heads = config.num_attention_heads;
  options.model_config = scratch.put("gpt2.json", config::to_json(testing::as_gpt2(config)));
  options.val_fraction = 0.3;
  options.eval_batches = 2;
  options.eval_every = 1;
  options.steps = 2;
  options.dropout = options.attention_dropout = 0;
  const TestRun reference = run_job(options);
  options.zero = 3;
  for (const auto& [dp, tp] : {std::pair(2, 1), std::pair(2, 2), std::pair(3, 1)}) {
    options.dp = dp, options.tp = tp;
    const TestRun late =
        run_job(options, {}, [](const comm::Group& group) { return testing::late_group(group); });
    ASSERT_EQ(late.records.size(), reference.records.size());
    for (size_t i = 0; i < late.records.size(); ++i) {
      EXPECT_NEAR(late.records[i].loss, reference.records[i].loss, kExact * reference.records[i].loss);
      EXPECT_NEAR(late.records[i].val_loss.value(), reference.records[i].val_loss.value(),
                  kExact * reference.records[i].loss)
          << "dp " << dp << " tp " << tp;
    }
  }
}

TEST(DataParallel, VerifyNamesTheParameterThatDiffersBetweenReplicas) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.dp = 3;
  options.zero = 0;  // owners would overwrite what differs
  options.verify = true;
  const Job job(options);
  const std::string text = test::error_text<c10::Error>([&] {
    on_run_ranks(options, [&](const comm::Mesh& mesh) {
      Trainer trainer(job, mesh);
      const at::NoGradGuard no_grad;
      if (mesh.rank() == 2) trainer.optimizer().state()[1].parameter->value.view(-1)[3] += 1e-3;
      const at::AutoGradMode gradients(true);
      trainer.step();
    });
  });
  EXPECT_PRED2(test::contains, text,
               " must be equal on every rank that holds it; dp rank 2's differs from dp rank 0's");
}

TEST(DataParallel, DefaultsToAMicroBatchForEachReplica) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.grad_accum = base::Default<int64_t>{1};
  options.dp = 3;
  EXPECT_EQ(int64_t(Job(options).options().grad_accum), 3);
}

}  // namespace
}  // namespace shardwise::train::data_parallel_test
