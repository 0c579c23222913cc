#include "shardwise/train/loop.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/base/memory_counter.h"
#include "shardwise/train/trainer.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::train::loop_test {
namespace {

using testing::expect_close;
using testing::kRounding;
using testing::run_job;
using testing::Scratch;
using testing::small_options;
using testing::TestRun;

TrainOptions with(TrainOptions options, int64_t tp, bool sequence_parallel) {
  options.tp = tp;
  options.sequence_parallel = sequence_parallel;
  return options;
}

TEST(Loop, LossesMatchOneRankAtEveryTpSizeWithDropoutAndClipping) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.dropout = options.attention_dropout = 0.1;
  options.clip_grad = 0.5;
  const TestRun reference = run_job(options);
  EXPECT_GT(reference.records[0].grad_norm, 0.5) << "no gradient was clipped";
  EXPECT_LT(reference.losses().back(), reference.losses().front() - 0.1) << "nothing was learned";
  for (const int64_t tp : {1, 2, 3}) {
    for (const bool sequence_parallel : {true, false}) {
      SCOPED_TRACE("tp " + std::to_string(tp) + (sequence_parallel ? " with" : " without") + " sp");
      const TestRun other = run_job(with(options, tp, sequence_parallel));
      expect_close(other.losses(), reference.losses());
      // The same roundings change the gradient norm four times as much.
      EXPECT_NEAR(other.records[3].grad_norm, reference.records[3].grad_norm,
                  4 * kRounding * reference.records[3].grad_norm);
    }
  }
}

TEST(Loop, DropoutChangesTheLossAndTheSeedChangesTheBatches) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  const std::vector<double> plain = run_job(options).losses();
  EXPECT_EQ(run_job(options).losses(), plain) << "the same job run twice";
  for (base::Setting<double>* dropout : {&options.dropout, &options.attention_dropout}) {
    *dropout = 0.2;
    EXPECT_GT(std::abs(run_job(options).losses()[0] - plain[0]), 1e-4);
    *dropout = 0;
  }
  options.seed = 1;
  EXPECT_GT(std::abs(run_job(options).losses()[0] - plain[0]), 1e-4);
}

TEST(Loop, EveryStepAndMicroBatchHasDistinctDropoutMasks) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.text = {scratch.put("same", std::string(1000, 'a'))};  // all windows are equal
  options.lr = 1e-30;                                            // and the weights do not change
  for (base::Setting<double>* dropout : {&options.dropout, &options.attention_dropout}) {
    options.batch_size = 1, options.grad_accum = 1;
    const std::vector<double> plain = run_job(options).losses();
    EXPECT_EQ(plain.front(), plain.back());
    *dropout = 0.3;
    const std::vector<double> dropped = run_job(options).losses();
    EXPECT_EQ(std::set<double>(dropped.begin(), dropped.end()).size(), dropped.size());
    options.grad_accum = 2;
    EXPECT_NE(run_job(options).losses()[0], dropped[0]) << "two micro-batches with one mask";
    *dropout = 0;
  }
}

TEST(Loop, ClipsLargeGradientsOnly) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.eps = 1;  // with a small eps AdamW is nearly independent of the gradient's scale
  const auto losses = [&](double clip_grad) {
    options.clip_grad = clip_grad;
    return run_job(options).losses();
  };
  EXPECT_EQ(losses(1e6), losses(0));
  EXPECT_NE(losses(0.1), losses(0));
}

TEST(Loop, GradientAccumulationMatchesOneLargeBatch) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.batch_size = 4, options.grad_accum = 1;
  const TestRun full_run = run_job(options);
  options.batch_size = 1, options.grad_accum = 4;
  const TestRun split = run_job(options);
  expect_close(split.losses(), full_run.losses());
  EXPECT_EQ(full_run.records[1].tokens, 2 * 4 * 11);
  EXPECT_EQ(split.records[1].tokens, 2 * 4 * 11);
}

TEST(Loop, ResumedAtAnotherTpSizeHasTheSameLosses) {
  const Scratch scratch;
  for (const std::string dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    TrainOptions options = small_options(scratch);
    options.dropout = options.attention_dropout = 0.1;
    options.dtype = dtype;
    const std::vector<double> full_run = run_job(options).losses();
    options.save = scratch / dtype;
    options.stop_after = 3;
    options.tp = 2;
    EXPECT_EQ(run_job(options).records.back().step, 3);
    options.stop_after.reset();
    options.resume = options.save;
    options.model_config.reset();
    options.dtype.reset();
    // Another TP size rounds other partial sums to bf16. The tolerance is ten times the measured 1e-4 of six
    // steps.
    const double tolerance = dtype == "fp32" ? kRounding : 1e-3;
    for (const int64_t tp : {1, 2, 3}) {
      SCOPED_TRACE("tp " + std::to_string(tp));
      options.save.reset();
      const TestRun rest = run_job(with(options, tp, /*sequence_parallel=*/tp != 3));
      EXPECT_EQ(rest.records.front().step, 4);
      EXPECT_EQ(rest.records.back().tokens, 6 * 4 * 11);
      expect_close(rest.losses(), {full_run.begin() + 3, full_run.end()}, tolerance);
    }
  }
}

TEST(Loop, ResumedAtTheSameTpSizeIsBitEqual) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.dropout = options.attention_dropout = 0.1;
  options.tp = 2;
  const std::vector<double> full_run = run_job(options).losses();
  options.save = scratch / "saved";
  options.stop_after = 4;
  run_job(options);
  options.stop_after.reset();
  options.resume = options.save;
  const std::vector<double> rest = run_job(options).losses();
  EXPECT_EQ(rest, std::vector<double>(full_run.begin() + 4, full_run.end()));
}

TEST(Loop, InitLoadsTheWeightsAndStartsAtStepOne) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.save = scratch / "first";
  run_job(options);
  options.save.reset();
  options.init = scratch / "first";
  options.tp = 2;
  const TestRun second = run_job(options);
  EXPECT_EQ(second.records.front().step, 1);
  EXPECT_DOUBLE_EQ(second.records.front().lr, 1e-2 / 2);
  EXPECT_LT(second.losses().front(), run_job(small_options(scratch)).losses().front() - 0.1);
}

TEST(Loop, EvaluatesAndSavesAtTheGivenIntervals) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.val_fraction = 0.2;
  options.eval_every = 4;
  options.save = scratch / "saved";
  options.save_every = 2;
  options.keep = 2;
  options.dropout = options.attention_dropout = 0.5;  // evaluation uses no dropout
  options.tp = 2;
  const TestRun result = run_job(options);
  for (const StepRecord& record : result.records) {
    EXPECT_EQ(record.val_loss.has_value(), record.step == 4 || record.step == 6);
  }
  EXPECT_LT(*result.summary.last.val_loss, result.losses().back());
  EXPECT_EQ(result.summary.saved, scratch / "saved/step-6");
  EXPECT_TRUE(std::filesystem::exists(scratch / "saved/step-4/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "saved/step-2"));
}

TEST(Loop, EvaluationIsEqualAtEveryTpSize) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.val_fraction = 0.2;
  const double reference = *run_job(options).summary.last.val_loss;
  EXPECT_NEAR(*run_job(with(options, 3, true)).summary.last.val_loss, reference, kRounding * reference);
  EXPECT_NEAR(*run_job(with(options, 2, false)).summary.last.val_loss, reference, kRounding * reference);
}

TEST(Loop, MoreEvaluationBatchesThanTheTextHasEvaluateAllOfIt) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.val_fraction = 0.2;
  options.eval_batches = 1000;
  const double all = *run_job(options).summary.last.val_loss;
  options.eval_batches = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*run_job(options).summary.last.val_loss, all);
}

TEST(Loop, StopsBeforeTheStepWhoseLossIsNotFinite) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.lr = 1e30;
  options.save = scratch / "saved";
  options.save_every = 1;
  options.tp = 2;
  try {
    run_job(options);
    FAIL() << "a loss that is not finite was accepted";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("must be finite"), std::string::npos) << text;
    EXPECT_NE(text.find("in step 2"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
    EXPECT_EQ(dynamic_cast<const c10::ValueError*>(&error), nullptr) << text;
  }
  EXPECT_TRUE(std::filesystem::exists(scratch / "saved/latest/config.json"));
}

TEST(Loop, CountsTheBytesThatEveryRankSends) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.tp = 3;
  const TestRun result = run_job(options);
  ASSERT_EQ(result.records[1].usage.size(), 3u);
  EXPECT_EQ(result.records[1].usage[2].comm_bytes, result.records[4].usage[2].comm_bytes);
  for (const Usage& usage : result.records[1].usage) {
    EXPECT_GT(usage.comm_bytes, 0);
    EXPECT_GT(usage.comm_ns, 0);
    EXPECT_TRUE(usage.wait_ns >= 0 && usage.wait_ns <= usage.comm_ns && usage.comm_ns <= usage.step_ns);
    EXPECT_GT(usage.copied_bytes, 0);
  }
}

TEST(Loop, RecordsTheTimeAndThePeakOfARankAlone) {
  const Scratch scratch;
  const Job job(small_options(scratch));
  base::install_memory_counter();
  testing::on_ranks(1, [&](comm::Group group) {
    Trainer trainer(job, one_replica(group));
    base::reset_peak();
    const StepRecord record = trainer.step();
    EXPECT_GT(record.usage[0].peak_memory_bytes, base::live_bytes());
    EXPECT_EQ(record.usage[0].peak_memory_bytes, base::peak_bytes());
    EXPECT_EQ(record.usage[0].step_ns, static_cast<int64_t>(record.step_ms * 1e6));
  });
}

TEST(Loop, WithoutASymmetricHeapWaitingAndCopiesHaveNoValue) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.steps = 2;
  options.tp = 2;
  const auto without_heap = [](const comm::Group& group) { return group.without_symmetric_heap(); };
  const TestRun run = run_job(options, {}, without_heap);
  for (const Usage& usage : run.records[1].usage) {
    EXPECT_GT(usage.comm_bytes, 0);
    EXPECT_FALSE(usage.wait_ns.has_value());
    EXPECT_FALSE(usage.copied_bytes.has_value());
  }
  for (const MemoryBreakdown& rank : run.summary.shard_report.ranks)
    EXPECT_FALSE(rank.peak_symmetric_heap.has_value());
  options.tp = 1;
  const TestRun alone = run_job(options);
  EXPECT_EQ(alone.records[1].usage[0].wait_ns, 0);
  EXPECT_EQ(alone.records[1].usage[0].copied_bytes, 0);
  EXPECT_EQ(alone.summary.shard_report.ranks[0].peak_symmetric_heap, 0);
}

TEST(Trainer, VerifiesInEvaluation) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.val_fraction = 0.2;
  options.tp = 2;
  const auto broadcasts = [&](bool verify) {
    options.verify = verify;
    const Job job(options);
    int64_t calls = 0;
    testing::on_ranks(2, [&](comm::Group group) {
      Trainer trainer(job, one_replica(group));
      const comm::Counters before = group.counters();
      trainer.evaluate();
      if (group.rank() == 0) calls = (group.counters() - before)[comm::Op::broadcast].calls;
    });
    return calls;
  };
  for (const bool sequence_parallel : {true, false}) {
    options.sequence_parallel = sequence_parallel;
    // Compared per batch: ids, key, labels, loss, and the inputs of two layers in each block and of the head.
    const int64_t layers = testing::small_byte_config().num_hidden_layers;
    EXPECT_EQ(broadcasts(true), options.eval_batches * (4 + 2 * layers + 1)) << sequence_parallel;
    EXPECT_EQ(broadcasts(false), 0);
  }
}

TEST(Loop, VerifyChangesNoResult) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.dropout = options.attention_dropout = 0.1;
  for (const bool sequence_parallel : {true, false}) {
    for (const int64_t tp : {2, 3}) {
      options = with(options, tp, sequence_parallel);
      options.verify = false;
      const std::vector<double> losses = run_job(options).losses();
      options.verify = true;
      EXPECT_EQ(run_job(options).losses(), losses) << tp;
    }
  }
}

/// Adds a millionth to the last element of a parameter.
void disturb_(const Trainer& trainer, const std::string& name) {
  const at::NoGradGuard no_grad;
  for (const nn::UsedParameter& used : trainer.weights().used_parameters())
    if (used.parameter->name == name) used.parameter->value.flatten()[-1].add_(1e-6);
}

/// Returns the error of the step after rank 3 has another last element of `name`; empty if there is none.
std::string error_after_disturbing(const TrainOptions& options, const std::string& name) {
  const Job job(options);
  std::vector<std::string> errors(4);
  testing::on_ranks(4, [&](comm::Group group) {
    Trainer trainer(job, one_replica(group));
    EXPECT_NO_THROW(trainer.step());
    if (group.rank() == 3) disturb_(trainer, name);
    if (options.verify) {
      errors[size_t(group.rank())] = test::error_text<c10::Error>([&] { trainer.step(); });
    } else {
      EXPECT_NO_THROW(trainer.step());
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(4, errors[0]));
  return errors[0];
}

TEST(Trainer, VerifyDetectsARankWhoseReplicaDiffers) {
  const Scratch scratch;
  TrainOptions options = small_options(scratch);
  options.tp = 4;  // ranks 2 and 3 hold the last of three KV heads
  const std::string qkv = "model.layers.1.self_attn.qkv_proj.weight", norm = "model.norm.weight";
  const std::string rule = " must be equal on every rank that holds it; rank 3's differs from rank ";
  for (const bool sequence_parallel : {true, false}) {
    SCOPED_TRACE(sequence_parallel);
    options.sequence_parallel = sequence_parallel;
    options.verify = true;
    EXPECT_EQ(error_after_disturbing(options, qkv), "verify: " + qkv + rule + "2's");
    if (sequence_parallel)
      EXPECT_EQ(error_after_disturbing(options, norm), "verify: " + norm + rule + "0's");
    else  // the head's input differs before
      EXPECT_EQ(
          error_after_disturbing(options, norm),
          "verify: a column-parallel layer's input must be equal on every rank; it differs from rank 0's "
          "on 1 of 4 ranks");
    options.verify = false;
    EXPECT_EQ(error_after_disturbing(options, norm), "");
  }
}

TEST(Record, JsonHasTheMaximaOverRanks) {
  StepRecord record;
  record.step = 3, record.tokens = 66, record.loss = 1.5, record.grad_norm = 2.5, record.lr = 0.25;
  record.tokens_per_s = 100, record.step_ms = 220;
  record.usage = {{9, 2000000, 500000, 10, 3, 50}, {8, 1000000, 750000, 12, 2, 60}};
  EXPECT_EQ(
      to_json(record),
      R"({"step":3,"tokens":66,"loss":1.5,"grad_norm":2.5,"lr":0.25,"tokens_per_s":100.0,"step_ms":220.0,)"
      R"("comm_ms":2.0,"wait_ms":0.75,"comm_bytes":12,"copied_bytes":3,"peak_memory_bytes":60})");
  record.val_loss = 1.25;
  EXPECT_EQ(nlohmann::json::parse(to_json(record))["val_loss"], 1.25);
  record.usage[0].axes[1] = {1000000, 500000, 4};
  record.usage[1].axes[1] = {500000, 600000, 6};
  EXPECT_EQ(nlohmann::json::parse(to_json(record))["axes"],
            (nlohmann::json{{"dp", {{"comm_ms", 1.0}, {"wait_ms", 0.6}, {"comm_bytes", 6}}}}));
  for (Usage& usage : record.usage) usage.wait_ns = usage.copied_bytes = std::nullopt;
  const auto uncounted = nlohmann::json::parse(to_json(record));
  EXPECT_FALSE(uncounted.contains("wait_ms") || uncounted.contains("copied_bytes")) << uncounted;
  EXPECT_EQ(uncounted["comm_ms"], 2.0);
}

}  // namespace
}  // namespace shardwise::train::loop_test
