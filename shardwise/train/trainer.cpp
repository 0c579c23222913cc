#include "shardwise/train/trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/base/mutation.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/train/batch.h"
#include "shardwise/train/finite.h"

namespace shardwise::train {
namespace {

at::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

AdamWOptions adamw_options(const Options& o) {
  return {.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay};
}

int64_t peak_memory_bytes(const comm::Group& group) {
  const comm::SymmetricHeap* shared = group.symmetric_heap();
  return base::peak_bytes() + (shared ? shared->peak_bytes() : 0);
}

/// What a step cost since the counters were `before`.
Usage usage_since(const comm::Counters& before, double step_ms, const comm::Group& group) {
  const comm::Counters spent = group.counters() - before;
  const comm::OpCount total = spent.total();
  return {static_cast<int64_t>(step_ms * 1e6),
          spent.busy_ns,
          spent.waiting_ns,
          total.bytes,
          total.copied_bytes,
          peak_memory_bytes(group)};
}

/// The checkpoint that the weights are read from.
const std::optional<std::filesystem::path>& start_of(const Job& job) {
  return job.resumed() ? job.resumed() : job.initial();
}

/// Frozen where asked; their values are not set yet.
std::unique_ptr<model::DecoderWeights> new_weights(const Job& job, const comm::Group& group) {
  auto weights =
      std::make_unique<model::DecoderWeights>(job.config(), group, scalar_type(job.config().dtype));
  for (const nn::UsedParameter& role : weights->roles()) {
    if (job.frozen().parameters.contains(role.parameter->name)) parallel::freeze_(*role.parameter);
  }
  return weights;
}

/// Returns what reading them has cost; nothing where they are drawn.
std::optional<checkpoint::LoadCost> load_or_draw_(const Job& job, model::DecoderWeights& weights) {
  if (const auto& directory = start_of(job)) {
    return checkpoint::cost_of(checkpoint::load_weights(*directory, weights), weights);
  }
  weights.initialize_(job.options().seed);
  return std::nullopt;
}

/// Each rank resolved `latest` and scanned the text by itself; a run that saves or a file that appears
/// meanwhile would leave them with different weights or batches of equal shapes. After all has been read.
void check_same_start(const Job& job, const comm::Group& group) {
  const std::array<uint64_t, 2> own = {job.fingerprint(), job.fingerprint_now()};
  const auto all = comm::gather_values(own, group);
  const std::array<uint64_t, 2> same = {all[0][0], all[0][0]};
  if (std::count(all.begin(), all.end(), same) == group.size()) return;
  throw base::CollectiveError(
      "train: all ranks must begin from the same checkpoint and text; they changed while the ranks started");
}

}  // namespace

Trainer::Trainer(const Job& job, const comm::Group& group)
    : job_(job),
      group_(group),
      weights_(new_weights(job, group)),
      load_cost_(load_or_draw_(job, *weights_)),
      model_(assemble(*weights_, job.options().sequence_parallel)),
      optimizer_(weights_->roles(), adamw_options(job.options())),
      schedule_(Schedule::of(job.options())),
      overlap_(job.options().overlap) {
  if (job.resumed()) read_state(*job.resumed());
  check_same_start(job, group);
}

void Trainer::read_state(const std::filesystem::path& directory) {
  checkpoint::TrainState stored = state();
  checkpoint::add_(*load_cost_, checkpoint::load_state(directory, stored, *weights_), group_);
  steps_done_ = stored.step;
  sequences_ = stored.sequences;
}

int64_t Trainer::tokens_per_step() const {
  const Options& o = job_.options();
  return o.seq_len * o.batch_size * o.grad_accum;
}

/// What training and evaluation have in common: no dropout yet.
nn::Step Trainer::make_step(kernels::RandomKey key) const {
  nn::Step step(group_, job_.options().seq_len, key);
  step.verify = job_.options().verify ? parallel::Verify::on : parallel::Verify::off;
  step.overlap = overlap_.current();
  return step;
}

checkpoint::TrainState Trainer::state() const {
  return {.parameters = optimizer_.state(),
          .step = steps_done_,
          .sequences = sequences_,
          .seed = static_cast<int64_t>(job_.options().seed),
          .seq_len = job_.options().seq_len};
}

double Trainer::micro_batch(int64_t index) {
  const Options& o = job_.options();
  int64_t first = sequences_;
  if (base::mutated(base::Mutation::rank_reads_own_windows)) first += group_.rank();
  if (base::mutated(base::Mutation::repeat_windows)) first -= index * o.batch_size;
  const Batch batch = training_batch(job_.windows(), first, o.batch_size);
  nn::Step step = make_step(nn::masks_key(o.seed, steps_done_, index));
  step.dropout = o.dropout;
  step.attention_dropout = o.attention_dropout;
  step.recompute = recompute_of(o.recompute);
  step.split_batch = o.domino;
  nn::LossOptions options(static_cast<double>(tokens_per_step()));
  options.label_smoothing = o.label_smoothing;
  options.z_loss = o.z_loss;
  const auto loss = model_.loss(batch.ids, batch.labels, options, step);
  loss.local().backward();
  sequences_ += o.batch_size;
  return loss.local().item<double>();
}

double Trainer::update_(double loss, double learning_rate) {
  const double norm = parallel::synced_norm_(model_.specs, group_);
  check_finite({steps_done_ + 1, loss, norm}, model_.specs, group_);
  const double max_norm = job_.options().clip_grad;
  if (max_norm > 0) parallel::clip_gradients_(model_.specs, norm, max_norm);
  optimizer_.step_(steps_done_ + 1, learning_rate);
  return norm;
}

StepRecord Trainer::step() {
  const base::Stopwatch watch;
  const comm::Counters before = group_.counters();
  for (const nn::UsedParameter& role : weights_->roles()) parallel::zero_grad_(*role.parameter);
  StepRecord record;
  for (int64_t i = 0; i < job_.options().grad_accum; ++i) record.loss += micro_batch(i);
  record.lr = schedule_.learning_rate(steps_done_ + !base::mutated(base::Mutation::schedule_off_by_one));
  record.grad_norm = update_(record.loss, record.lr);
  record.step = ++steps_done_;
  record.tokens = sequences_ * job_.options().seq_len;
  record.step_ms = watch.milliseconds();
  record.tokens_per_s = static_cast<double>(tokens_per_step()) / record.step_ms * 1e3;
  record.usage = comm::gather_values(usage_since(before, record.step_ms, group_), group_);
  if (group_.size() == 1) return record;
  record.overlap = overlap_.current() == parallel::Overlap::on ? "on" : "off";
  overlap_.record(record.largest_usage().step_ns);
  return record;
}

double Trainer::evaluate() {
  const at::NoGradGuard no_grad;
  const Options& o = job_.options();
  const int64_t windows = std::min(job_.windows().validation_count(), o.eval_batches * o.batch_size);
  double loss = 0;
  for (int64_t first = 0; first < windows; first += o.batch_size) {
    const Batch batch = validation_batch(job_.windows(), first, std::min(o.batch_size, windows - first));
    const nn::Step step = make_step(kernels::RandomKey::of(0));
    loss += model_.loss(batch.ids, batch.labels, static_cast<double>(windows * o.seq_len), step)
                .local()
                .item<double>();
  }
  return loss;
}

void Trainer::save(const std::filesystem::path& directory, int64_t keep) {
  checkpoint::save(directory, *weights_, state(), keep, job_.companions());
}

}  // namespace shardwise::train
