// Steps of pipelines whose stages have replicas and tensor-parallel ranks, against those of one rank, in
// fp64.
#include <cstdio>

#include "tests/support/error_text.h"
#include "tests/train/one_rank.h"
#include "tests/train/same_files.h"

namespace shardwise::train::pipeline_test {
namespace {

using testing::expect_same_files;
using testing::expect_steps_of;
using testing::kExact;
using testing::on_run_ranks;
using testing::Reference;
using testing::reference_of;
using testing::run_job;
using testing::Scratch;
using testing::TestRun;

constexpr int kMostRanks = 8;

config::Config deep_config(const char* family = "llama") {
  config::Config config = testing::small_byte_config();
  config.num_hidden_layers = kMostRanks;
  config.num_attention_heads = kMostRanks;
  config.num_key_value_heads = 2;
  if (std::string(family) == "gpt2") config = testing::as_gpt2(config);
  return config;
}

/// Returns three steps of five micro-batches of a model of eight blocks with uneven shards.
TrainOptions run_options(const Scratch& scratch, const config::Config& config = deep_config()) {
  TrainOptions options = testing::small_options(scratch);
  options.model_config = scratch.put("model.json", config::to_json(config));
  options.dtype = "fp64";
  options.grad_accum = 5;
  options.steps = 3;
  options.dropout = options.attention_dropout = 0.1;
  options.clip_grad = 0.5;
  return options;
}

std::string name_of(const TrainOptions& o) {
  return "pp " + std::to_string(o.pp) + " dp " + std::to_string(o.dp) + " tp " + std::to_string(o.tp);
}

/// Calls `run` with every (pp, dp, tp) of 1 to 8 ranks.
template <class Run>
void for_each_mesh(TrainOptions& options, const Run& run) {
  for (options.pp = 1; options.pp <= kMostRanks; ++options.pp)
    for (options.dp = 1; options.pp * options.dp <= kMostRanks; ++options.dp)
      for (options.tp = 1; options.ranks() <= kMostRanks; ++options.tp) run();
}

TEST(Pipelines, EveryMeshHasTheStepsOfOneRank) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const Reference reference = reference_of(options);
  EXPECT_GT(reference.records[0].grad_norm, 2 * options.clip_grad) << "no gradient was clipped";
  int compared = 0;
  for_each_mesh(options, [&] {
    for (const bool sequence_parallel : {true, false}) {
      if (options.tp == 1 && !sequence_parallel) continue;
      options.sequence_parallel = sequence_parallel;
      SCOPED_TRACE(name_of(options));
      expect_steps_of(reference, options);
      ++compared;
    }
  });
  std::printf("covered: %d runs on all meshes of 1 to 8 ranks\n", compared);
}

TEST(Pipelines, TiedHeadsAndFrozenParametersTrainAsOnOneRank) {
  const Scratch scratch;
  for (const char* family : {"llama", "gpt2"}) {
    TrainOptions options = run_options(scratch, deep_config(family));
    for (const std::vector<std::string>& freeze :
         {std::vector<std::string>{},
          {family == std::string("gpt2") ? "transformer.wte.weight" : "model.embed_tokens.weight"},
          {family == std::string("gpt2") ? "transformer.[wh]*[te0123].*" : "model.[le]*[s0123].*"}}) {
      options.freeze = freeze;
      options.pp = options.dp = options.tp = 1;
      const Reference reference = reference_of(options);
      options.verify = true;
      for (const auto& [pp, dp, tp, zero] :
           {std::tuple(2, 1, 1, 1), std::tuple(3, 2, 1, 1), std::tuple(2, 1, 2, 0), std::tuple(8, 1, 1, 1),
            std::tuple(2, 2, 2, 0)}) {
        options.pp = pp, options.dp = dp, options.tp = tp, options.zero = zero;
        SCOPED_TRACE(std::string(family) + " " + name_of(options) + " frozen " +
                     ::testing::PrintToString(freeze));
        expect_steps_of(reference, options);
      }
      options.verify = false;
    }
  }
}

TEST(Pipelines, AnyNumberOfMicroBatchesAndAnyRecomputation) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const char* const recomputes[] = {"none", "selective", "full"};
  for (const int64_t micro_batches : {1, 2, 3, 4, 5}) {  // 1: two of three replicas have none
    options.grad_accum = micro_batches;
    options.pp = options.dp = options.tp = 1;
    options.recompute = "none";
    const Reference reference = reference_of(options);
    for (const auto& [pp, dp, tp] : {std::tuple(2, 3, 1), std::tuple(4, 1, 2), std::tuple(3, 2, 1)}) {
      options.pp = pp, options.dp = dp, options.tp = tp;
      options.recompute = recomputes[(micro_batches + pp) % 3];
      options.shared_weights = micro_batches % 2 == 0 ? "auto" : "off";
      SCOPED_TRACE(name_of(options) + " micro-batches " + std::to_string(micro_batches));
      expect_steps_of(reference, options);
    }
  }
}

TEST(Pipelines, EvaluateSaveAndResumeAtAnyMesh) {
  const Scratch scratch;
  for (const char* family : {"llama", "gpt2"}) {
    TrainOptions options = run_options(scratch, deep_config(family));
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
    options.save = scratch / (std::string("saved-") + family);
    options.pp = 3, options.dp = 2;
    options.stop_after = 2;
    for (const StepRecord& record : run_job(options).records) expect_equal(record);
    options.stop_after.reset();
    options.resume = options.save;
    options.model_config.reset();
    options.dtype.reset();
    options.save.reset();
    for (const auto& [pp, dp, tp] : {std::tuple(1, 1, 1), std::tuple(1, 3, 2), std::tuple(8, 1, 1),
                                     std::tuple(2, 2, 2), std::tuple(2, 1, 3)}) {
      options.pp = pp, options.dp = dp, options.tp = tp;
      SCOPED_TRACE(std::string(family) + " resumed at " + name_of(options));
      const TestRun resumed = run_job(options);
      ASSERT_EQ(resumed.records.size(), 2u);
      for (const StepRecord& record : resumed.records) expect_equal(record);
    }
  }
}

TEST(Pipelines, EveryMeshSavesTheSameFilesBeforeTheFirstStep) {
  for (const char* family : {"llama", "gpt2"}) {
    const Scratch scratch;
    TrainOptions options = run_options(scratch, deep_config(family));
    options.dtype = "bf16";
    const auto saved = [&] {
      const std::filesystem::path directory = scratch / name_of(options);
      const Job job(options);
      on_run_ranks(options, [&](const comm::Mesh& mesh) {
        Trainer trainer(job, mesh);
        trainer.begin_save(directory, /*keep=*/0).finish();
      });
      return directory / "step-0";
    };
    const auto expected = saved();
    for_each_mesh(options, [&] {
      SCOPED_TRACE(std::string(family) + " " + name_of(options));
      if (options.ranks() > 1) expect_same_files(saved(), expected);
    });
  }
}

// Stages run the same operations on the same numbers; only the norm, for clipping, sums in another order.
TEST(Pipelines, StagesHaveTheBitsOfOneRank) {
  const Scratch scratch;
  for (const char* dtype : {"fp32", "bf16"}) {
    TrainOptions options = run_options(scratch);
    options.dtype = dtype;
    options.clip_grad = 0;
    options.save_every = 3;
    options.save = scratch / (std::string("one-") + dtype);
    run_job(options);
    const std::filesystem::path expected = *options.save;
    for (const int64_t stages : {2, 3, 8}) {
      options.pp = stages;
      SCOPED_TRACE(std::string(dtype) + " " + std::to_string(stages) + " stages");
      options.save = scratch / (std::to_string(stages) + dtype);
      run_job(options);
      expect_same_files(std::filesystem::path(*options.save) / "step-3", expected / "step-3");
    }
  }
}

TEST(Pipelines, NotFiniteGradientsAreNamedAndLeaveTheWeights) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.pp = 2, options.tp = 2;
  const Job job(options);
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    Trainer trainer(job, mesh);
    const parallel::Parameter& parameter = *trainer.optimizer().state()[1].parameter;
    const at::Tensor before = parameter.value.detach().clone();
    if (mesh.rank() == 3) parameter.main_grad.view(-1)[0].fill_(NAN);
    const std::string text = test::error_text<NotFiniteError>([&] { trainer.step(); });
    EXPECT_PRED2(test::contains, text,
                 "in the gradient of model.layers.4.self_attn.qkv_proj.weight on rank 3");
    EXPECT_TRUE(at::equal(parameter.value.detach(), before));
  });
}

TEST(Pipelines, UnevenStagesAndBothSchedulesHaveTheStepsOfOneRank) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const Reference reference = reference_of(options);
  for (const char* schedule : {"1f1b", "afab"}) {
    options.pp_schedule = schedule;
    for (const std::vector<int64_t>& layers : {std::vector<int64_t>{1, 7}, {7, 1}, {2, 1, 5}, {3, 1, 1, 3}}) {
      options.pp_layers = layers;
      options.pp = std::ssize(layers);
      options.dp = options.pp == 2 ? 2 : 1;
      options.tp = 2;
      SCOPED_TRACE(std::string(schedule) + " layers " + ::testing::PrintToString(layers));
      expect_steps_of(reference, options);
    }
  }
}

TEST(Pipelines, InterleavedStagesHaveTheStepsOfOneRank) {
  const Scratch scratch;
  for (const char* family : {"llama", "gpt2"}) {
    TrainOptions options = run_options(scratch, deep_config(family));
    for (const int64_t micro_batches : {2, 4, 5}) {
      options.grad_accum = micro_batches;
      options.pp = options.virtual_stages = options.dp = options.tp = 1;
      const Reference reference = reference_of(options);
      for (options.pp = 2; options.pp <= 4; ++options.pp) {
        for (options.virtual_stages = 2; options.pp * options.virtual_stages <= 8; ++options.virtual_stages) {
          options.dp = options.pp == 2 && options.virtual_stages == 3 ? 2 : 1;
          options.tp = options.pp == 4 ? 1 : 2;
          SCOPED_TRACE(std::string(family) + " " + name_of(options) + " virtual stages " +
                       std::to_string(options.virtual_stages) + " micro-batches " +
                       std::to_string(micro_batches));
          expect_steps_of(reference, options);
        }
      }
    }
  }
}

TEST(Pipelines, InterleavedStagesEvaluateSaveAndResume) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, deep_config("gpt2"));
  options.val_fraction = 0.3;
  options.eval_every = 1;
  options.steps = 4;
  const TestRun reference = run_job(options);
  options.save = scratch / "saved";
  options.pp = 2, options.virtual_stages = 3, options.dp = 2;
  options.pp_layers = {1, 2, 1, 1, 2, 1};
  options.stop_after = 2;
  const TestRun first = run_job(options);
  options.stop_after.reset();
  options.resume = options.save;
  options.model_config.reset();
  options.dtype.reset();
  options.save.reset();
  options.pp = 3, options.virtual_stages = 2, options.dp = 1;
  options.pp_layers.clear();
  const TestRun rest = run_job(options);
  for (const TestRun* run : {&first, &rest}) {
    ASSERT_EQ(run->records.size(), 2u);
    for (const StepRecord& record : run->records) {
      const StepRecord& expected = reference.records.at(static_cast<size_t>(record.step - 1));
      EXPECT_NEAR(record.loss, expected.loss, kExact * expected.loss);
      EXPECT_NEAR(record.val_loss.value(), expected.val_loss.value(), kExact * expected.loss);
    }
  }
}

TEST(Pipelines, StagesNeedALayerEach) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.pp = 9;
  EXPECT_EQ(test::error_text([&] { Job{options}; }),
            "train: --pp must be at most the number of layers, 8; got 9");
  options.pp = 2;
  options.pp_layers = {8};
  EXPECT_EQ(test::error_text([&] { Job{options}; }),
            "train: --pp-layers must be as many numbers as --pp, 2; got 1");
  options.pp_layers = {4, 5};
  EXPECT_EQ(test::error_text([&] { Job{options}; }),
            "train: --pp-layers must add up to the number of layers, 8; got 9");
  options.pp_layers.clear();
  options.pp_schedule = "gpipe";
  EXPECT_EQ(test::error_text([&] { Job{options}; }), "train: --pp-schedule must be 1f1b or afab; got gpipe");
  options.pp_schedule = "1f1b";
  options.virtual_stages = 5;
  EXPECT_EQ(test::error_text([&] { Job{options}; }),
            "train: --pp x --virtual-stages must be at most the number of layers, 8; got 2 x 5");
  options.pp = 1, options.virtual_stages = 2;
  EXPECT_EQ(test::error_text([&] { Job{options}; }),
            "train: --virtual-stages above 1 needs --pp 2 or more; got 2");
  options.pp = 2, options.virtual_stages = 1;
  options.dp = 2, options.zero = 2;
  EXPECT_EQ(
      test::error_text([&] { Job{options}; }),
      "train: --zero 2 and 3 sum the gradients of a block when its backward is done, and need one that runs "
      "alone; got --pp 2 too, which runs several micro-batches at once");
}

}  // namespace
}  // namespace shardwise::train::pipeline_test
