#include "shardwise/doctor/resume_check.h"

#include <fmt/format.h>

#include <memory>

#include "shardwise/doctor/results.h"
#include "shardwise/doctor/smoke_test_options.h"
#include "shardwise/doctor/verdict.h"

namespace shardwise::doctor {

using train::Trainer;

namespace {

/// A tensor that a checkpoint saves.
struct SavedTensor {
  std::string name;
  parallel::ParameterPtr parameter;
  at::Tensor shard;
};

std::vector<SavedTensor> saved_tensors(const Trainer& trainer) {
  std::vector<SavedTensor> all;
  for (const nn::UsedParameter& used : trainer.weights().used_parameters())
    all.push_back({used.parameter->name, used.parameter, used.parameter->value.detach()});
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : trainer.optimizer().state()) {
    if (master.defined()) all.push_back({"the master weight of " + parameter->name, parameter, master});
    all.push_back({"the first moment of " + parameter->name, parameter, exp_avg});
    all.push_back({"the second moment of " + parameter->name, parameter, exp_avg_sq});
  }
  return all;
}

/// Returns the first tensor that differs between two runs over the same ranks; empty if none does.
std::string differing_shard(const Trainer& a, const Trainer& b) {
  const std::vector<SavedTensor> of_a = saved_tensors(a), of_b = saved_tensors(b);
  TORCH_INTERNAL_ASSERT(of_a.size() == of_b.size(), "the runs save ", of_a.size(), " and ", of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!of_a[i].shard.equal(of_b[i].shard)) return of_a[i].name;
  return {};
}

/// Compares `live` with a run over one rank, which is null except on rank 0. Returns the first tensor that
/// differs. Collective over the group of `live`.
std::string differing_full(const Trainer& live, const Trainer* single, const comm::Group& group) {
  const std::vector<SavedTensor> live_tensors = saved_tensors(live),
                                 single_tensors =
                                     single ? saved_tensors(*single) : std::vector<SavedTensor>();
  std::string name;
  for (size_t i = 0; i < live_tensors.size(); ++i) {
    const FullTensor full = full_tensor(*live_tensors[i].parameter, live_tensors[i].shard, group);
    const bool is_equal = !single || (full.differing == 0 && full.tensor.equal(single_tensors[i].shard));
    if (!is_equal && name.empty()) name = live_tensors[i].name;
  }
  return name;
}

/// A resumed trainer and its job.
class ResumedRun {
 public:
  ResumedRun(const train::Options& options, const comm::Group& group)
      : job_(options), trainer_(job_, group) {}
  Trainer& trainer() { return trainer_; }

 private:
  train::Job job_;
  Trainer trainer_;
};

std::string load_error(const char* ranks, const std::string& name) {
  return name.empty() ? "" : fmt::format("{} loaded by {} differs from what was saved", name, ranks);
}

/// Checks what a single rank loads against the shards of all ranks.
std::string single_rank_error(const CheckedRun& live, const train::Options& options,
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

}  // namespace

Check check_resume(CheckedRun& live, const std::filesystem::path& checkpoint, const train::Options& options,
                   const comm::Group& group) {
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

}  // namespace shardwise::doctor
