#include "shardwise/doctor/training_smoke_test.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <memory>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/adamw_formula.h"
#include "shardwise/doctor/inference_checks.h"
#include "shardwise/doctor/reference.h"

namespace shardwise::doctor {

using plan::Parallelism;
using train::Trainer;
using Checks = std::vector<Check>;

namespace {

/// A run of the real trainer that checks the input and the update of each step.
class CheckedRun {
 public:
  /// Starts a run that has done no step yet. Collective.
  CheckedRun(const train::TrainOptions& options, const comm::Group& group);

  /// Runs the next step. Collective. Its loss must be bit-equal to that of the doctor's own forward on the
  /// same ranks for the expected training windows, each token's label being the next token. Its update must
  /// match AdamWFormula. (Comparisons check that the ranks compute what TP=1 does.)
  train::StepRecord step();

  /// Saves a checkpoint in `directory`. Collective. Errors: those of checkpoint::save.
  void save(const std::filesystem::path& directory) { trainer_.begin_save(directory, /*keep=*/0).finish(); }

  const Trainer& trainer() const { return trainer_; }
  /// Returns the checks "training text" and "optimizer". Collective.
  Checks checks() const;

 private:
  double expected_loss() const;

  train::Job job_;
  comm::Group group_;
  RunConfig run_config_;
  Trainer trainer_;
  AdamWFormula formula_;
  std::string text_error_, optimizer_error_;  // on this rank; empty if there is none
};

RunConfig run_config_of(const train::Job& job) {
  return {.dtype = job.config().dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .parallelism = job.options().sequence_parallel ? Parallelism::tp_sp : Parallelism::tp};
}

/// Returns training windows `first` to `first` + `count` − 1 as columns.
Tokens columns(const text::Windows& windows, int64_t first, int64_t count) {
  const int64_t length = windows.seq_len();
  const at::Tensor rows = at::empty({count, length + 1}, at::kLong);
  auto* const begin = rows.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i)
    windows.read_training(first + i, {begin + i * (length + 1), static_cast<size_t>(length + 1)});
  const auto from = [&](int64_t position) {
    return rows.narrow(/*dim=*/1, position, length).t().contiguous();
  };
  return {from(0), from(1)};
}

CheckedRun::CheckedRun(const train::TrainOptions& options, const comm::Group& group)
    : job_(options),
      group_(group),
      run_config_(run_config_of(job_)),
      trainer_(job_, train::one_replica(group)),
      formula_(trainer_, job_.options()) {}

train::StepRecord CheckedRun::step() {
  const double expected = expected_loss();
  train::StepRecord record = trainer_.step([&] { formula_.copy_gradients(); });
  if (record.loss != expected && text_error_.empty())
    text_error_ =
        fmt::format("step {} has loss {:.10g}; the loss of the expected training windows is {:.10g}",
                    record.step, record.loss, expected);
  const std::string error = formula_.error_after_step(record.grad_norm);
  if (optimizer_error_.empty()) optimizer_error_ = error;
  return record;
}

double CheckedRun::expected_loss() const {
  const train::TrainOptions& o = job_.options();
  const nn::LossOptions mean(static_cast<double>(o.seq_len * o.batch_size * o.grad_accum));
  int64_t first = trainer_.steps_done() * o.batch_size * o.grad_accum;
  double loss = 0;
  for (int64_t i = 0; i < o.grad_accum; ++i, first += o.batch_size)
    loss += loss_of(trainer_.weights(),
                    {"training smoke test", columns(job_.windows(), first, o.batch_size), mean}, run_config_);
  return loss;
}

Checks CheckedRun::checks() const {
  const std::string scope = run_config_.name(group_.size()) + ", " + dtype_name(run_config_.dtype);
  const int64_t steps = trainer_.steps_done();
  const Check text{
      "training text", scope, true,
      fmt::format("the losses of {} steps of a small model are bit-equal to those of the expected windows",
                  steps)};
  const Check optimizer{"optimizer", scope, true,
                        fmt::format("after {} steps every weight matches AdamW's formula in fp64", steps)};
  return {verdict_of_all_ranks(text, text_error_, group_),
          verdict_of_all_ranks(optimizer, optimizer_error_, group_)};
}

// A resumed run continues exactly as the run that saved the checkpoint.

/// A tensor that a checkpoint saves.
struct CheckpointTensor {
  std::string name;
  parallel::ParameterPtr parameter;
  at::Tensor shard;
};

std::vector<CheckpointTensor> saved_tensors(const Trainer& trainer) {
  std::vector<CheckpointTensor> all;
  for (const nn::UsedParameter& used : trainer.weights().used_parameters())
    all.push_back({used.parameter->name, used.parameter, used.parameter->value.detach()});
  for (const auto& [parameter, rows, master, exp_avg, exp_avg_sq] : trainer.optimizer().state()) {
    if (master.defined()) all.push_back({"the master weight of " + parameter->name, parameter, master});
    all.push_back({"the first moment of " + parameter->name, parameter, exp_avg});
    all.push_back({"the second moment of " + parameter->name, parameter, exp_avg_sq});
  }
  return all;
}

/// Returns the first tensor that differs between two runs over the same ranks; empty if none does.
std::string differing_shard(const Trainer& a, const Trainer& b) {
  const std::vector<CheckpointTensor> of_a = saved_tensors(a), of_b = saved_tensors(b);
  TORCH_INTERNAL_ASSERT(of_a.size() == of_b.size(), "the runs save ", of_a.size(), " and ", of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!of_a[i].shard.equal(of_b[i].shard)) return of_a[i].name;
  return {};
}

/// Compares `live` with a run over one rank, which is null except on rank 0. Returns the first tensor that
/// differs. Collective over the group of `live`.
std::string differing_full(const Trainer& live, const Trainer* single, const comm::Group& group) {
  const std::vector<CheckpointTensor> live_tensors = saved_tensors(live),
                                      single_tensors =
                                          single ? saved_tensors(*single) : std::vector<CheckpointTensor>();
  std::string name;
  for (size_t i = 0; i < live_tensors.size(); ++i) {
    const GatheredTensor full = full_tensor(*live_tensors[i].parameter, live_tensors[i].shard, group);
    const bool is_equal = !single || (full.differing == 0 && full.tensor.equal(single_tensors[i].shard));
    if (!is_equal && name.empty()) name = live_tensors[i].name;
  }
  return name;
}

/// A resumed trainer and its job.
class ResumedRun {
 public:
  ResumedRun(const train::TrainOptions& options, const comm::Group& group)
      : job_(options), trainer_(job_, train::one_replica(group)) {}
  Trainer& trainer() { return trainer_; }

 private:
  train::Job job_;
  Trainer trainer_;
};

std::string load_error(const char* ranks, const std::string& name) {
  return name.empty() ? "" : fmt::format("{} loaded by {} differs from what was saved", name, ranks);
}

/// Checks what a single rank loads against the shards of all ranks.
std::string single_rank_error(const CheckedRun& live, const train::TrainOptions& options,
                              const comm::Group& group) {
  std::unique_ptr<ResumedRun> single;
  if (group.rank() == 0) single = std::make_unique<ResumedRun>(options, comm::Group());
  return load_error("one rank", differing_full(live.trainer(), single ? &single->trainer() : nullptr, group));
}

/// Runs the next step of both runs and compares them. Collective.
std::string next_step_error(CheckedRun& live, Trainer& resumed) {
  const train::StepRecord expected = live.step(), got = resumed.step();
  if (got.step != expected.step) return fmt::format("a resumed run continues with step {}", got.step);
  if (got.loss != expected.loss || got.grad_norm != expected.grad_norm || got.tokens != expected.tokens)
    return fmt::format(
        "step {} of a resumed run has loss {:.10g} and norm {:.10g}; the live run has {:.10g} and {:.10g}",
        got.step, got.loss, got.grad_norm, expected.loss, expected.grad_norm);
  const std::string name = differing_shard(live.trainer(), resumed);
  return name.empty() ? "" : fmt::format("{} differs from the live run's after step {}", name, got.step);
}

/// Checks `checkpoint`, which `live` has just saved. Collective. Loads it on the same ranks and, on rank 0,
/// on one rank alone: weights, masters and moments must be bit-equal to those of `live`. Then runs the next
/// step of `live` and of a run resumed with `options`: loss, norm and weights must be bit-equal. Cost: one
/// full tensor at a time. Errors: those of train::Job and checkpoint::load_weights.
Check check_resume(CheckedRun& live, const std::filesystem::path& checkpoint,
                   const train::TrainOptions& options, const comm::Group& group) {
  const Check passed{
      "checkpoint", "", true,
      "weights, optimizer and next step are bit-equal after loading on these ranks and on one"};
  Check check = verdict_of_all_ranks(
      passed, single_rank_error(live, resume_options(options, checkpoint, /*tp=*/1), group), group);
  if (!check.passed) return check;
  ResumedRun again(resume_options(options, checkpoint, group.size()), group);
  check = verdict_of_all_ranks(
      passed, load_error("the same ranks", differing_shard(live.trainer(), again.trainer())), group);
  if (!check.passed) return check;
  return verdict_of_all_ranks(passed, next_step_error(live, again.trainer()), group);
}

constexpr int64_t kStepsBeforeSave = 2, kSteps = 3;

void append(Checks& checks, const Checks& more) {
  checks.insert(checks.end(), more.begin(), more.end());
}

/// Trains, saves a checkpoint, compares the next step of the live run with that of a resumed run, and
/// generates from the checkpoint.
Checks test_save_and_resume(const TrainingSmokeTest& smoke_test, const comm::Group& group) {
  const train::TrainOptions options = smoke_test_options(smoke_test, Parallelism::tp_sp, group.size());
  const std::filesystem::path saved = smoke_test.directory / "run";
  CheckedRun run(options, group);
  for (int64_t i = 0; i < kStepsBeforeSave; ++i) run.step();
  run.save(saved);
  const std::filesystem::path checkpoint = checkpoint::resolve(saved);
  const Check resume = check_resume(run, checkpoint, options, group);
  Checks checks = run.checks();
  checks.push_back(resume);
  if (group.rank() == 0) checks.push_back(check_logits(checkpoint));
  append(checks,
         run_inference_checks({checkpoint, smoke_test.directory / "panels", smoke_test.dtype}, group));
  return checks;
}

Checks test_steps(const TrainingSmokeTest& smoke_test, const comm::Group& group) {
  CheckedRun run(smoke_test_options(smoke_test, Parallelism::tp, group.size()), group);
  for (int64_t i = 0; i < kSteps; ++i) run.step();
  return run.checks();
}

}  // namespace

Checks run_training_smoke_test(const TrainingSmokeTest& smoke_test, const comm::Group& group) {
  if (group.rank() == 0) write_inputs(smoke_test);
  group.barrier();
  Checks checks = test_steps(smoke_test, group);
  append(checks, test_save_and_resume(smoke_test, group));
  return checks;
}

}  // namespace shardwise::doctor
