#include "shardwise/doctor/checked_run.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "shardwise/doctor/verdict.h"

namespace shardwise::doctor {

namespace {

RunConfig run_config_of(const train::Job& job) {
  return {.dtype = job.config().dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .parallelism = job.options().sequence_parallel ? plan::Parallelism::tp_sp : plan::Parallelism::tp};
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

}  // namespace

CheckedRun::CheckedRun(const train::Options& options, const comm::Group& group)
    : job_(options),
      group_(group),
      run_config_(run_config_of(job_)),
      trainer_(job_, group),
      formula_(trainer_, job_.options()) {}

train::StepRecord CheckedRun::step() {
  const double expected = expected_loss();
  train::StepRecord record = trainer_.step();
  if (record.loss != expected && text_error_.empty())
    text_error_ =
        fmt::format("step {} has loss {:.10g}; the loss of the expected training windows is {:.10g}",
                    record.step, record.loss, expected);
  const std::string error = formula_.error_after_step();
  if (optimizer_error_.empty()) optimizer_error_ = error;
  return record;
}

double CheckedRun::expected_loss() const {
  const train::Options& o = job_.options();
  const nn::LossOptions mean(static_cast<double>(o.seq_len * o.batch_size * o.grad_accum));
  int64_t first = trainer_.steps_done() * o.batch_size * o.grad_accum;
  double loss = 0;
  for (int64_t i = 0; i < o.grad_accum; ++i, first += o.batch_size)
    loss += loss_of(trainer_.weights(),
                    {"training smoke test", columns(job_.windows(), first, o.batch_size), mean}, run_config_);
  return loss;
}

std::vector<Check> CheckedRun::checks() const {
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

}  // namespace shardwise::doctor
