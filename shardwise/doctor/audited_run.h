// A training run of the real trainer, each step of which is held against what it should have read and done.
#pragma once
#include "shardwise/doctor/adamw_formula.h"
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

class AuditedRun {
 public:
  /// Collective: of a run that has done no step yet.
  AuditedRun(const train::Options& options, const comm::Group& group);

  /// Collective: the next step. Its loss must be the bits that doctor::run_pass gives on the same ranks for
  /// the training windows that are due, each token's label the one after it. (Whether the ranks compute what
  /// TP=1 does is the comparisons' concern.) Its update must be AdamWFormula's.
  train::StepRecord step();

  /// Collective: a checkpoint in `directory`. Errors: those of checkpoint::save.
  void save(const std::filesystem::path& directory) { trainer_.save(directory, /*keep=*/0); }

  const train::Trainer& trainer() const { return trainer_; }
  /// Collective: "training text" and "optimizer".
  std::vector<Audit> audits() const;

 private:
  double expected_loss() const;

  train::Job job_;
  comm::Group group_;
  Way way_;
  train::Trainer trainer_;
  AdamWFormula formula_;
  std::string wrong_text_, wrong_optimizer_;  // on this rank; empty: nothing
};

}  // namespace shardwise::doctor
