#include "shardwise/doctor/training_smoke_test.h"

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/logits.h"
#include "shardwise/doctor/resume_check.h"

namespace shardwise::doctor {

using plan::Parallelism;
using Checks = std::vector<Check>;

namespace {

constexpr int64_t kStepsBeforeSave = 2, kSteps = 3;

void append(Checks& checks, const Checks& more) {
  checks.insert(checks.end(), more.begin(), more.end());
}

/// Trains, saves a checkpoint, and compares the next step of the live run with that of a resumed run.
Checks test_save_and_resume(const TrainingSmokeTest& smoke_test, const comm::Group& group) {
  const train::Options options = smoke_test_options(smoke_test, Parallelism::tp_sp, group.size());
  const std::filesystem::path saved = smoke_test.directory / "run";
  CheckedRun run(options, group);
  for (int64_t i = 0; i < kStepsBeforeSave; ++i) run.step();
  run.save(saved);
  const std::filesystem::path checkpoint = checkpoint::resolve(saved);
  const Check resume = check_resume(run, checkpoint, options, group);
  Checks checks = run.checks();
  checks.push_back(resume);
  if (group.rank() == 0) checks.push_back(check_logits(checkpoint));
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
