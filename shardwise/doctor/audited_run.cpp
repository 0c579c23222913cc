#include "shardwise/doctor/audited_run.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "shardwise/doctor/verdict.h"

namespace shardwise::doctor {

namespace {

Way way_of(const train::Job& job) {
  return {.dtype = job.config().dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .stream = job.options().sequence_parallel ? plan::Stream::tp_sp : plan::Stream::tp};
}

/// Training windows `first` to `first` + `count` − 1, one a column.
Tokens columns(const text::Windows& windows, int64_t first, int64_t count) {
  const int64_t length = windows.seq_len();
  const at::Tensor rows = at::empty({count, length + 1}, at::kLong);
  auto* const begin = rows.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i)
    windows.training(first + i, {begin + i * (length + 1), static_cast<size_t>(length + 1)});
  const auto from = [&](int64_t position) {
    return rows.narrow(/*dim=*/1, position, length).t().contiguous();
  };
  return {from(0), from(1)};
}

}  // namespace

AuditedRun::AuditedRun(const train::Options& options, const comm::Group& group)
    : job_(options),
      group_(group),
      way_(way_of(job_)),
      trainer_(job_, group),
      formula_(trainer_, job_.options()) {}

train::StepRecord AuditedRun::step() {
  const double expected = expected_loss();
  train::StepRecord record = trainer_.step();
  if (record.loss != expected && wrong_text_.empty())
    wrong_text_ = fmt::format("step {} has a loss of {:.10g}; of the windows that are due it is {:.10g}",
                              record.step, record.loss, expected);
  const std::string wrong = formula_.wrong_after_step();
  if (wrong_optimizer_.empty()) wrong_optimizer_ = wrong;
  return record;
}

double AuditedRun::expected_loss() const {
  const train::Options& o = job_.options();
  const nn::LossOptions mean(static_cast<double>(o.seq_len * o.batch_size * o.grad_accum));
  int64_t first = trainer_.steps_done() * o.batch_size * o.grad_accum;
  double loss = 0;
  for (int64_t i = 0; i < o.grad_accum; ++i, first += o.batch_size)
    loss +=
        loss_of(trainer_.weights(), {"rehearsal", columns(job_.windows(), first, o.batch_size), mean}, way_);
  return loss;
}

std::vector<Audit> AuditedRun::audits() const {
  const std::string of = way_.name(group_.size()) + ", " + dtype_name(way_.dtype);
  const int64_t steps = trainer_.steps_done();
  const Audit text{"training text", of, true,
                   fmt::format("{} steps trained in small on the windows that were due, bit for bit", steps)};
  const Audit optimizer{"optimizer", of, true,
                        fmt::format("every weight after {} steps is AdamW's by formula in fp64", steps)};
  return {of_all_ranks(text, wrong_text_, group_), of_all_ranks(optimizer, wrong_optimizer_, group_)};
}

}  // namespace shardwise::doctor
