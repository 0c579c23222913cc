#include "shardwise/doctor/rehearsal.h"

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/logits.h"
#include "shardwise/doctor/resumption.h"

namespace shardwise::doctor {

using plan::Stream;
using Audits = std::vector<Audit>;

namespace {

constexpr int64_t kStepsBefore = 2, kStepsInAll = 3;  // saved after the first of these

void append(Audits& audits, const Audits& more) {
  audits.insert(audits.end(), more.begin(), more.end());
}

/// Steps, a checkpoint, and a step on which the live run and one that is resumed agree.
Audits rehearse_saving(const Rehearsal& rehearsal, const comm::Group& group) {
  const train::Options options = options_of(rehearsal, Stream::tp_sp, group.size());
  const std::filesystem::path saved = rehearsal.directory / "run";
  AuditedRun run(options, group);
  for (int64_t i = 0; i < kStepsBefore; ++i) run.step();
  run.save(saved);
  const std::filesystem::path checkpoint = checkpoint::resolve(saved);
  const Audit resumption = audit_resumption(run, checkpoint, options, group);
  Audits audits = run.audits();
  audits.push_back(resumption);
  if (group.rank() == 0) audits.push_back(audit_logits(checkpoint));
  return audits;
}

Audits rehearse_steps(const Rehearsal& rehearsal, const comm::Group& group) {
  AuditedRun run(options_of(rehearsal, Stream::tp, group.size()), group);
  for (int64_t i = 0; i < kStepsInAll; ++i) run.step();
  return run.audits();
}

}  // namespace

Audits rehearse(const Rehearsal& rehearsal, const comm::Group& group) {
  if (group.rank() == 0) put_input(rehearsal);
  group.barrier();
  Audits audits = rehearse_steps(rehearsal, group);
  append(audits, rehearse_saving(rehearsal, group));
  return audits;
}

}  // namespace shardwise::doctor
