// A run of the real trainer that checks the input and the update of each step.
#pragma once
#include "shardwise/doctor/adamw_formula.h"
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

class CheckedRun {
 public:
  /// Starts a run that has done no step yet. Collective.
  CheckedRun(const train::Options& options, const comm::Group& group);

  /// Runs the next step. Collective. Its loss must be bit-equal to that of the doctor's own forward on the
  /// same ranks for the expected training windows, each token's label being the next token. Its update must
  /// match AdamWFormula. (Comparisons check that the ranks compute what TP=1 does.)
  train::StepRecord step();

  /// Saves a checkpoint in `directory`. Collective. Errors: those of checkpoint::save.
  void save(const std::filesystem::path& directory) { trainer_.save(directory, /*keep=*/0); }

  const train::Trainer& trainer() const { return trainer_; }
  /// Returns the checks "training text" and "optimizer". Collective.
  std::vector<Check> checks() const;

 private:
  double expected_loss() const;

  train::Job job_;
  comm::Group group_;
  RunConfig run_config_;
  train::Trainer trainer_;
  AdamWFormula formula_;
  std::string text_error_, optimizer_error_;  // on this rank; empty if there is none
};

}  // namespace shardwise::doctor
