#include "shardwise/doctor/resumption.h"

#include <fmt/format.h>

#include <memory>

#include "shardwise/doctor/rehearsal_options.h"
#include "shardwise/doctor/results.h"
#include "shardwise/doctor/verdict.h"

namespace shardwise::doctor {

using train::Trainer;

namespace {

/// What a checkpoint keeps of a run.
struct Kept {
  std::string name;
  parallel::ParameterPtr parameter;
  at::Tensor slice;
};

std::vector<Kept> kept_of(const Trainer& trainer) {
  std::vector<Kept> all;
  for (const nn::UsedParameter& role : trainer.weights().roles())
    all.push_back({role.parameter->name, role.parameter, role.parameter->value.detach()});
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : trainer.optimizer().state()) {
    if (master.defined()) all.push_back({"the master of " + parameter->name, parameter, master});
    all.push_back({"the first moment of " + parameter->name, parameter, exp_avg});
    all.push_back({"the second moment of " + parameter->name, parameter, exp_avg_sq});
  }
  return all;
}

/// The first that differs between two runs over the same ranks; empty: none.
std::string differing_slice(const Trainer& a, const Trainer& b) {
  const std::vector<Kept> of_a = kept_of(a), of_b = kept_of(b);
  TORCH_INTERNAL_ASSERT(of_a.size() == of_b.size(), "the runs keep ", of_a.size(), " and ", of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!of_a[i].slice.equal(of_b[i].slice)) return of_a[i].name;
  return {};
}

/// The same beside a run over one rank, null but on rank 0. Collective over live's.
std::string differing_whole(const Trainer& live, const Trainer* alone, const comm::Group& group) {
  const std::vector<Kept> of_live = kept_of(live), of_alone = alone ? kept_of(*alone) : std::vector<Kept>();
  std::string name;
  for (size_t i = 0; i < of_live.size(); ++i) {
    const Whole whole = whole_of(*of_live[i].parameter, of_live[i].slice, group);
    const bool is_same = !alone || (whole.differing == 0 && whole.tensor.equal(of_alone[i].slice));
    if (!is_same && name.empty()) name = of_live[i].name;
  }
  return name;
}

/// A run and what it is of, which outlives it.
class Resumed {
 public:
  Resumed(const train::Options& options, const comm::Group& group) : job_(options), trainer_(job_, group) {}
  Trainer& trainer() { return trainer_; }

 private:
  train::Job job_;
  Trainer trainer_;
};

std::string said(const char* by, const std::string& name) {
  return name.empty() ? "" : fmt::format("{} is read otherwise than it was saved, by {}", name, by);
}

/// What one rank alone reads, beside what all hold.
std::string wrong_alone(const AuditedRun& live, const train::Options& options, const comm::Group& group) {
  std::unique_ptr<Resumed> alone;
  if (group.rank() == 0) alone = std::make_unique<Resumed>(options, comm::Group());
  return said("one rank", differing_whole(live.trainer(), alone ? &alone->trainer() : nullptr, group));
}

/// Collective: both do their next step.
std::string wrong_next_step(AuditedRun& live, Trainer& resumed) {
  const train::StepRecord expected = live.step(), got = resumed.step();
  if (got.step != expected.step) return fmt::format("a resumed run goes on with step {}", got.step);
  if (got.loss != expected.loss || got.grad_norm != expected.grad_norm || got.tokens != expected.tokens)
    return fmt::format(
        "step {} of a resumed run has loss {:.10g} and norm {:.10g}, of the live one {:.10g} and "
        "{:.10g}",
        got.step, got.loss, got.grad_norm, expected.loss, expected.grad_norm);
  const std::string name = differing_slice(live.trainer(), resumed);
  return name.empty() ? "" : fmt::format("{} parts from the live run's after step {}", name, got.step);
}

}  // namespace

Audit audit_resumption(AuditedRun& live, const std::filesystem::path& checkpoint,
                       const train::Options& options, const comm::Group& group) {
  const Audit right{"checkpoint", "", true,
                    "read by these ranks and by one: weights and optimizer to the bit, and so the next step"};
  Audit audit = of_all_ranks(right, wrong_alone(live, resumed(options, checkpoint, /*tp=*/1), group), group);
  if (!audit.holds) return audit;
  Resumed again(resumed(options, checkpoint, group.size()), group);
  audit =
      of_all_ranks(right, said("the same ranks", differing_slice(live.trainer(), again.trainer())), group);
  if (!audit.holds) return audit;
  return of_all_ranks(right, wrong_next_step(live, again.trainer()), group);
}

}  // namespace shardwise::doctor
