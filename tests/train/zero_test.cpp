// Replicas that split optimizer states and updates: the same bits and files as without, however the weights
// are stored.
#include <set>

#include "shardwise/train/trainer.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"
#include "tests/train/same_files.h"

namespace shardwise::train::zero_test {
namespace {

using testing::expect_same_files;
using testing::on_run_ranks;
using testing::run_job;
using testing::Scratch;
using testing::TestRun;

TrainOptions run_options(const Scratch& scratch, const char* family = "llama") {
  TrainOptions options = testing::small_options(scratch);
  config::Config config = testing::small_byte_config();
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  if (std::string(family) == "gpt2") config = testing::as_gpt2(config);  // its files hold transposed weights
  if (std::string(family) == "phi3") config.model_type = "phi3";         // its files hold fused weights
  options.model_config = scratch.put("model.json", config::to_json(config));
  options.grad_accum = 5;
  options.steps = 3;
  options.dropout = 0.1;
  options.clip_grad = 0.5;
  return options;
}

/// Runs `options`, saves after every step, and returns the directory.
std::filesystem::path saved_run(TrainOptions options, const Scratch& scratch, const std::string& name,
                                TestRun& run) {
  options.save = scratch / name;
  options.save_every = 1;
  options.keep = 0;
  run = run_job(options);
  return *options.save;
}

struct Run {
  const char* name;
  const char* family;
  const char* dtype;
};

class Zero : public ::testing::TestWithParam<Run> {};

TEST_P(Zero, HasTheBitsOfReplicasThatSplitNothing) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, GetParam().family);
  options.dtype = GetParam().dtype;
  for (const auto& [dp, tp] :
       {std::pair(2, 1), std::pair(3, 1), std::pair(2, 2), std::pair(3, 2), std::pair(2, 4)}) {
    options.dp = dp, options.tp = tp;
    SCOPED_TRACE("dp " + std::to_string(dp) + " tp " + std::to_string(tp));
    const std::string name = std::to_string(dp) + "x" + std::to_string(tp) + "-";
    TestRun without, split;
    options.zero = 0;
    const auto expected = saved_run(options, scratch, name + "zero-0", without);
    options.zero = 1;
    for (const char* shared_weights : {"off", "auto"}) {
      options.shared_weights = shared_weights;
      SCOPED_TRACE(std::string("shared weights ") + shared_weights);
      const auto directory = saved_run(options, scratch, name + shared_weights, split);
      for (size_t i = 0; i < without.records.size(); ++i) {
        EXPECT_EQ(split.records[i].loss, without.records[i].loss);
        EXPECT_EQ(split.records[i].grad_norm, without.records[i].grad_norm);
      }
      for (const char* step : {"step-1", "step-3"}) expect_same_files(directory / step, expected / step);
    }
  }
}

TEST_P(Zero, ShardedGradientsHaveTheSameBitsWithAMicroBatchForEachReplica) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, GetParam().family);
  options.dtype = GetParam().dtype;
  options.clip_grad = 0;  // the norm sums in another order
  for (const auto& [dp, tp] : {std::pair(3, 2), std::pair(2, 4)}) {
    options.dp = dp, options.tp = tp;
    SCOPED_TRACE("dp " + std::to_string(dp) + " tp " + std::to_string(tp));
    options.grad_accum = dp;
    const std::string name = std::to_string(dp) + "x" + std::to_string(tp) + "-";
    TestRun run;
    options.zero = 0;
    const auto expected = saved_run(options, scratch, name + "zero-0", run);
    options.zero = 2;
    for (const char* shared_weights : {"off", "auto"}) {
      options.shared_weights = shared_weights;
      SCOPED_TRACE(std::string("shared weights ") + shared_weights);
      expect_same_files(saved_run(options, scratch, name + shared_weights, run) / "step-3",
                        expected / "step-3");
    }
  }
}

TEST_P(Zero, ShardedWeightsHaveTheBitsOfShardedGradients) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, GetParam().family);
  options.dtype = GetParam().dtype;
  for (const auto& [dp, tp, is_frozen] :
       {std::tuple(2, 1, false), std::tuple(3, 2, false), std::tuple(2, 4, false), std::tuple(3, 1, true)}) {
    options.dp = dp, options.tp = tp;
    options.freeze = is_frozen ? std::vector<std::string>{"*.1.*"} : std::vector<std::string>{};
    const std::string name = std::to_string(dp) + "x" + std::to_string(tp) + (is_frozen ? "-frozen-" : "-");
    SCOPED_TRACE(name);
    TestRun of_gradients, of_weights;
    options.zero = 2;
    const auto expected = saved_run(options, scratch, name + "zero-2", of_gradients);
    options.zero = 3;
    options.verify = true;  // changes nothing
    const auto saved = saved_run(options, scratch, name + "zero-3", of_weights);
    options.verify = false;
    for (size_t i = 0; i < of_gradients.records.size(); ++i) {
      EXPECT_EQ(of_weights.records[i].loss, of_gradients.records[i].loss);
      EXPECT_EQ(of_weights.records[i].grad_norm, of_gradients.records[i].grad_norm);
    }
    for (const char* step : {"step-1", "step-3"}) expect_same_files(saved / step, expected / step);
  }
}

TEST_P(Zero, EveryMeshSavesTheSameFilesBeforeTheFirstStep) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, GetParam().family);
  options.dtype = GetParam().dtype;
  const auto saved = [&](const std::string& name) {
    const std::filesystem::path directory = scratch / name;
    const Job job(options);
    on_run_ranks(options, [&](const comm::Mesh& mesh) {
      Trainer trainer(job, mesh);
      trainer.begin_save(directory, /*keep=*/0).finish();
    });
    return directory / "step-0";
  };
  options.dp = options.tp = 1;
  const auto expected = saved("one");
  for (options.dp = 1; options.dp <= 8; ++options.dp) {
    for (options.tp = 1; options.ranks() <= 8; ++options.tp) {
      for (options.zero = 0; options.zero <= 3; ++options.zero) {
        const std::string name = std::to_string(options.dp) + "x" + std::to_string(options.tp) + "x" +
                                 std::to_string(options.zero);
        SCOPED_TRACE(name);
        expect_same_files(saved(name), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Zero,
                         ::testing::Values(Run{"Llama", "llama", "fp32"}, Run{"LlamaInBf16", "llama", "bf16"},
                                           Run{"Gpt2", "gpt2", "fp32"}, Run{"Phi3InBf16", "phi3", "bf16"}),
                         [](const auto& info) { return info.param.name; });

TEST(ZeroResumes, AtOtherMeshesWithTheSameLosses) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch, "gpt2");
  options.dtype = "fp64";
  options.steps = 4;
  const TestRun reference = run_job(options);
  options.save = scratch / "saved";
  options.dp = 3, options.tp = 2;
  options.stop_after = 2;
  run_job(options);
  options.stop_after.reset();
  options.resume = options.save;
  options.model_config.reset();
  options.dtype.reset();
  options.save.reset();
  struct Resumed {
    int dp, tp, zero;
    const char* shared_weights;
  };
  for (const auto& [dp, tp, zero, shared_weights] :
       {Resumed{1, 1, 1, "auto"}, Resumed{2, 3, 1, "off"}, Resumed{3, 2, 2, "auto"}, Resumed{5, 1, 1, "auto"},
        Resumed{2, 4, 0, "off"}, Resumed{4, 2, 3, "off"}}) {
    SCOPED_TRACE("resumed at dp " + std::to_string(dp) + " tp " + std::to_string(tp));
    options.dp = dp, options.tp = tp, options.zero = zero, options.shared_weights = shared_weights;
    const TestRun resumed = run_job(options);
    ASSERT_EQ(resumed.records.size(), 2u);
    for (const StepRecord& record : resumed.records)
      EXPECT_NEAR(record.loss, reference.records[size_t(record.step - 1)].loss, 1e-10 * record.loss);
  }
}

/// Returns the elements of AdamW's first moments on every rank.
std::vector<int64_t> moments(const TrainOptions& options) {
  std::vector<int64_t> elements(size_t(options.ranks()), 0);
  const Job job(options);
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    const Trainer trainer(job, mesh);
    for (const ParameterState& state : trainer.optimizer().state())
      elements[size_t(mesh.rank())] += state.exp_avg.numel();
  });
  return elements;
}

TEST(ZeroStates, AreSplitOverTheReplicas) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  const int64_t all = moments(options)[0];
  options.dp = 5;
  int64_t total = 0;
  for (const int64_t own : moments(options)) {
    EXPECT_NEAR(static_cast<double>(own), static_cast<double>(all) / 5, 37);  // the widest row
    total += own;
  }
  EXPECT_EQ(total, all);
  options.zero = 0;
  EXPECT_EQ(moments(options), std::vector<int64_t>(5, all));
}

TEST(ZeroStates, SplitGradientsExceptOfOnePart) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.dp = 3;
  options.zero = 2;
  std::vector<int64_t> owned(3, 0);
  const Job job(options);
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    const Trainer trainer(job, mesh);
    std::set<const void*> buffers;
    for (const ParameterState& state : trainer.optimizer().state()) {
      const parallel::Parameter& parameter = *state.parameter;
      buffers.insert(parameter.main_grad.storage().data());
      EXPECT_EQ(parameter.owned_grad.numel(), state.exp_avg.numel()) << parameter.name;
      owned[size_t(mesh.rank())] += parameter.owned_grad.numel();
    }
    EXPECT_EQ(buffers.size(), 1u);
  });
  options.dp = 1;
  EXPECT_EQ(owned[0] + owned[1] + owned[2], moments(options)[0]);
}

TEST(ZeroStates, GradientsAreNotSplitWithoutOptimizerStates) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.dp = 2;
  const Job job(options);
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    const model::DecoderWeights weights(job.config(), mesh.group("tp"), at::kFloat);
    const auto made = [&] {
      parallel::DataParallel(weights.parts<nn::Invariant>(), mesh.group("dp"), parallel::Replication::whole);
    };
    EXPECT_EQ(
        test::error_text(made),
        "DataParallel: sharded gradients need replicas that split optimizer states; got whole replicas");
    EXPECT_EQ(test::error_text([&] {
                parallel::DataParallel(weights.specs<nn::Invariant>(), mesh.group("dp"),
                                       parallel::Replication::sharded);
              }),
              "DataParallel: sharded weights need the parameters in parts; got one list");
  });
}

TEST(ZeroNotFinite, LeavesWeightsAndZeroGradients) {
  const Scratch scratch;
  TrainOptions options = run_options(scratch);
  options.dp = 2, options.tp = 2;
  for (const auto& [zero, shared_weights] :
       {std::pair(1, "off"), std::pair(1, "auto"), std::pair(2, "auto")}) {
    options.zero = zero;
    options.shared_weights = shared_weights;
    const Job job(options);
    on_run_ranks(options, [&](const comm::Mesh& mesh) {
      Trainer trainer(job, mesh);
      const parallel::Parameter& parameter = *trainer.optimizer().state()[2].parameter;
      const at::Tensor before = parameter.value.detach().clone();
      const auto spoil = [&] {
        if (mesh.rank() == 3) parameter.main_grad.view(-1)[0].fill_(NAN);
      };
      trainer.step();
      const at::Tensor after_one = parameter.value.detach().clone();
      EXPECT_FALSE(at::equal(before, after_one));
      spoil();
      EXPECT_THROW(trainer.step(), NotFiniteError);
      EXPECT_TRUE(at::equal(parameter.value.detach(), after_one));
      EXPECT_EQ(parameter.main_grad.count_nonzero().item<int64_t>(), 0);
      if (zero == 2) EXPECT_EQ(parameter.owned_grad.count_nonzero().item<int64_t>(), 0);
    });
  }
}

}  // namespace
}  // namespace shardwise::train::zero_test
