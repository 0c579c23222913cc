#include "shardwise/train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/profile.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/device.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/train/batch.h"
#include "shardwise/train/saved_state.h"

namespace shardwise::train {
namespace {

at::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "float64") return at::kDouble;
  return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

AdamWOptions adamw_options(const TrainOptions& o) {
  return {.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay};
}

int64_t peak_memory_bytes(const comm::Mesh& mesh) {
  int64_t bytes = kernels::peak_bytes(world_of(mesh).device());
  for (const comm::Group& group : mesh.groups())
    if (group.has_symmetric_heap()) bytes += group.symmetric_heap()->peak_bytes();
  return bytes;
}

/// What a rank has counted in all of its groups, and in those of the axes.
struct MeshCounters {
  comm::Counters all;
  std::array<comm::Counters, kAxes.size()> axes;
};

/// `hosts`: further groups of the data-parallel axis.
MeshCounters counters_of(const comm::Mesh& mesh, const std::optional<parallel::HostGroups>& hosts) {
  MeshCounters counters;
  for (const comm::Group& group : mesh.groups()) counters.all = counters.all + group.counters();
  for (size_t axis = 0; axis < kAxes.size(); ++axis) {
    counters.axes[axis] = mesh.group(kAxes[axis]).counters();
    if (hosts && kAxes[axis] == kDataAxis)
      counters.axes[axis] = counters.axes[axis] + hosts->within.counters() + hosts->across.counters();
  }
  return counters;
}

/// Returns the cost of a step since the counters were `before`. Only symmetric heaps count waiting and
/// copies; a rank alone does neither.
Usage usage_since(const MeshCounters& before, const MeshCounters& now, double step_ms,
                  const comm::Mesh& mesh) {
  const comm::Counters spent = now.all - before.all;
  const comm::OpCount total = spent.total();
  const bool counts_waiting = mesh.symmetric_heaps_peak().has_value();
  Usage usage{.step_ns = static_cast<int64_t>(step_ms * 1e6),
              .comm_ns = spent.busy_ns,
              .comm_bytes = total.bytes,
              .peak_memory_bytes = peak_memory_bytes(mesh)};
  for (size_t axis = 0; axis < kAxes.size(); ++axis) {
    const comm::Counters of_axis = now.axes[axis] - before.axes[axis];
    usage.axes[axis] = {of_axis.busy_ns, std::nullopt, of_axis.total().bytes};
    if (counts_waiting) usage.axes[axis].wait_ns = of_axis.waiting_ns;
  }
  if (!counts_waiting) return usage;
  usage.wait_ns = spent.waiting_ns;
  usage.copied_bytes = total.copied_bytes;
  return usage;
}

/// Allocates the weights and freezes the parameters of --freeze. The values are not set yet.
std::unique_ptr<model::DecoderWeights> new_weights(const Job& job, const comm::Mesh& mesh) {
  const parallel::Replication replication = replication_of(job.options(), mesh);
  const auto use = replication == parallel::Replication::whole ? model::WeightUse::training
                                                               : model::WeightUse::replicated_training;
  auto weights = std::make_unique<model::DecoderWeights>(
      job.config(), mesh.group(kTensorAxis), scalar_type(job.config().dtype), use,
      config::layers_of(stages_of(job.options()), job.config().num_hidden_layers,
                        mesh.coordinate(kPipelineAxis)));
  for (const nn::UsedParameter& used : weights->all_parameters()) {
    if (job.frozen().parameters.contains(used.parameter->name)) parallel::freeze_(*used.parameter);
  }
  return weights;
}

parallel::DataParallel make_data_parallel(const BoundModel& model, const TrainOptions& options,
                                          const comm::Mesh& mesh) {
  const comm::Group& replicas = mesh.group(kDataAxis);
  const parallel::Replication replication = replication_of(options, mesh);
  const std::optional<parallel::HostGroups> hosts = host_groups(options, mesh);
  if (options.zero >= 2) return {model.parts, replicas, replication, hosts};
  return {model.specs, replicas, replication, hosts};
}

/// Checks that all ranks started from the same checkpoint and text (collective). Each rank resolves `latest`
/// and scans the text itself, so a concurrent save or write could give them different weights or batches of
/// equal shapes. Called after everything has been read.
void check_same_start(const Job& job, const comm::Group& group) {
  const std::array<uint64_t, 2> local = {job.fingerprint(), job.fingerprint_now()};
  const auto all = comm::gather_values(local, group);
  const std::array<uint64_t, 2> same = {all[0][0], all[0][0]};
  if (std::count(all.begin(), all.end(), same) == group.size()) return;
  throw base::CollectiveError(
      "train: all ranks must start from the same checkpoint and text; they changed while the ranks started"
      " [SW0246]");
}

}  // namespace

Trainer::Trainer(const Job& job, const comm::Mesh& mesh)
    : job_(job),
      mesh_(mesh),
      weights_(new_weights(job, mesh)),
      model_(bind_to_residual_stream(*weights_, job.options().sequence_parallel)),
      stage_(model_, *weights_, mesh_.group(kPipelineAxis)),
      data_parallel_(make_data_parallel(model_, job.options(), mesh_)),
      load_cost_(load_or_initialize_()),
      optimizer_(weights_->used_parameters(), adamw_options(job.options()), data_parallel_.updated()),
      schedule_(Schedule::of(job.options())),
      overlap_(job.options().overlap, replica().size() == 1 || parallel::can_overlap(replica())) {
  if (job.resumed()) read_state(*job.resumed());
  check_same_start(job, world_of(mesh_));
}

/// Loads or initializes the weights. Returns the cost of loading, or nullopt if they are initialized.
std::optional<checkpoint::LoadCost> Trainer::load_or_initialize_() {
  const auto& directory = job_.starting_checkpoint();
  const auto keep = [this](parallel::Parameter& parameter) { data_parallel_.keep_set_(parameter); };
  const bool sets_weights = data_parallel_.sets_weights();
  checkpoint::LoadStats stats{};
  if (directory)
    stats = loaded([&] {
      return sets_weights ? checkpoint::load_weights(*directory, *weights_, keep) : checkpoint::LoadStats{};
    });
  if (!directory && sets_weights) weights_->initialize_(job_.options().seed, keep);
  data_parallel_.wait_until_set();
  if (has_stages()) stage_.publish_tied_weight_();
  return directory ? std::optional(checkpoint::cost_of(stats, *weights_, world_of(mesh_))) : std::nullopt;
}

/// Calls `load`, which checks what the ranks of this replica's stage read. Throws on every rank if it throws
/// on any: the others would wait for it.
checkpoint::LoadStats Trainer::loaded(const std::function<checkpoint::LoadStats()>& load) const {
  checkpoint::LoadStats stats{};
  checkpoint::ValidationErrors errors;
  errors.collect([&] { stats = load(); });
  errors.raise_on_any_rank(world_of(mesh_));
  return stats;
}

void Trainer::read_state(const std::filesystem::path& directory) {
  checkpoint::TrainState stored = state();
  const auto load = [&] { return checkpoint::load_state(directory, stored, *weights_); };
  checkpoint::add_(*load_cost_, loaded(load), world_of(mesh_));
  steps_done_ = stored.step;
  sequences_ = stored.sequences;
}

int64_t Trainer::tokens_per_step() const {
  const TrainOptions& o = job_.options();
  return o.seq_len * o.batch_size * o.grad_accum;
}

/// Returns the step options that training and evaluation share, without dropout.
nn::Step Trainer::make_step(kernels::RandomKey key) const {
  nn::Step step(replica(), job_.options().seq_len, key);
  step.verify = job_.options().verify ? parallel::Verify::on : parallel::Verify::off;
  step.overlap = overlap_.current();
  if (data_parallel_.shards_weights()) step.part_begins = &begin_part_;
  return step;
}

checkpoint::TrainState Trainer::state() const {
  return {.tensors = state_tensors(optimizer_, *weights_),
          .step = steps_done_,
          .sequences = sequences_,
          .seed = static_cast<int64_t>(job_.options().seed),
          .seq_len = job_.options().seq_len};
}

MicroBatch Trainer::make_micro_batch(int64_t index) const {
  const TrainOptions& o = job_.options();
  const Batch batch = training_batch(job_.windows(), sequences_ + index * o.batch_size, o.batch_size);
  nn::Step step = make_step(nn::masks_key(o.seed, steps_done_, index));
  step.dropout = o.dropout;
  step.attention_dropout = o.attention_dropout;
  step.recompute = recompute_of(o.recompute);
  step.split_batch = o.split_batch;
  nn::LossOptions options(static_cast<double>(tokens_per_step()));
  options.label_smoothing = o.label_smoothing;
  options.z_loss = o.z_loss;
  return {batch, step, options};
}

at::Tensor Trainer::micro_batch(int64_t index, const nn::OnPart* part_done) {
  MicroBatch one = make_micro_batch(index);
  one.step.part_gradients_done = part_done;
  const auto loss = model_.loss(one.batch.ids, one.batch.labels, one.loss, one.step);
  loss.local().backward();
  return loss.local().detach();
}

void Trainer::sum_parts_down_to_(int64_t first) {
  while (unsummed_parts_ > first) {
    const auto index = static_cast<size_t>(--unsummed_parts_);
    const parallel::ParamSpecs& part = model_.parts.parts[index];
    parallel::sync_gradients_(part, replica());
    if (job_.options().verify) parallel::verify_replicas(part, parallel::Held::gradients, replica());
    data_parallel_.finish_part_(index);
  }
}

at::Tensor Trainer::run_micro_batches_() {
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kDouble).device(replica().device()));
  const base::Range own = micro_batches_of(job_.options(), mesh_.coordinate(kDataAxis));
  if (has_stages())
    return stage_.run(own, pipeline_schedule_of(job_.options()),
                      [this](int64_t index) { return make_micro_batch(index); });
  const bool shards_gradients = data_parallel_.shards_gradients();
  const nn::OnPart sum_parts = [this](int64_t first) { sum_parts_down_to_(first); };
  for (int64_t i = own.begin; i < own.end; ++i) {
    unsummed_parts_ = std::ssize(model_.parts.parts);
    loss += micro_batch(i, shards_gradients ? &sum_parts : nullptr);
    if (shards_gradients) sum_parts(0);
  }
  if (shards_gradients) join_micro_batches_(most_micro_batches(job_.options()) - own.size());
  return loss;
}

void Trainer::join_micro_batches_(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    join_forward_();
    for (size_t part = model_.parts.parts.size(); part > 0; --part) data_parallel_.finish_part_(part - 1);
  }
}

void Trainer::join_forward_() {
  for (size_t part = 0; part < model_.parts.parts.size(); ++part) data_parallel_.begin_part_(part);
}

void Trainer::zero_gradients_() {
  for (const nn::UsedParameter& used : weights_->held_parameters()) parallel::zero_grad_(*used.parameter);
}

void Trainer::verify_replicas(parallel::Held held) const {
  if (job_.options().verify) parallel::verify_replicas(model_.specs, held, replica());
}

void Trainer::verify_weights_() {
  if (!data_parallel_.shards_weights()) {
    verify_replicas(parallel::Held::weights);
    verify_data_replicas(parallel::Held::weights);
    return;
  }
  if (!job_.options().verify) return;
  for (size_t part = 0; part < model_.parts.parts.size(); ++part) {
    data_parallel_.begin_part_(part);
    parallel::verify_replicas(model_.parts.parts[part], parallel::Held::weights, replica());
  }
  data_parallel_.forget_parts_();
}

void Trainer::verify_data_replicas(parallel::Held held) const {
  if (job_.options().verify) parallel::verify_data_replicas(model_.specs, held, replicas());
}

at::Tensor Trainer::sum_over_ranks_(at::Tensor& loss) {
  base::enter_part("");
  if (!data_parallel_.shards_gradients()) {
    parallel::sync_gradients_(model_.specs, replica());
    verify_replicas(parallel::Held::gradients);
    if (has_stages()) stage_.add_tied_gradient_();
    data_parallel_.sum_gradients_();
  }
  if (data_parallel_.replication() == parallel::Replication::whole)
    verify_data_replicas(parallel::Held::gradients);
  stages_and_replicas(mesh_).all_reduce_(loss);
  return parallel::square_norm(model_.specs, replica(), data_parallel_.owned(), world_of(mesh_));
}

StepHealth Trainer::update_(at::Tensor loss, double learning_rate,
                            const std::function<void()>& before_update) {
  const at::Tensor square_norm = sum_over_ranks_(loss);
  if (before_update) before_update();
  const at::Tensor scale = parallel::clip_scale(square_norm, loss, job_.options().clip_grad);
  optimizer_.step_and_zero_grad_(steps_done_ + 1, learning_rate, scale);
  const at::Tensor sums = at::cat({loss, square_norm}).cpu();
  const StepHealth health{steps_done_ + 1, sums[0].item<double>(), std::sqrt(sums[1].item<double>())};
  try {
    check_finite(health, model_.all_specs, world_of(mesh_));
  } catch (...) {
    zero_gradients_();
    throw;
  }
  data_parallel_.finish_update_();
  if (has_stages() && stage_.trains_tied_weight()) stage_.publish_tied_weight_();
  verify_weights_();
  return health;
}

StepRecord Trainer::step(const std::function<void()>& before_update) {
  const base::ProfiledOp profiled("step");
  const base::Stopwatch watch;
  const MeshCounters before = counters_of(mesh_, data_parallel_.hosts());
  StepRecord record;
  const at::Tensor loss = run_micro_batches_();
  sequences_ += job_.options().batch_size * job_.options().grad_accum;
  record.lr = schedule_.learning_rate(steps_done_ + 1);
  const StepHealth health = update_(loss, record.lr, before_update);
  record.loss = health.loss;
  record.grad_norm = health.grad_norm;
  record.step = ++steps_done_;
  record.tokens = sequences_ * job_.options().seq_len;
  record.step_ms = watch.milliseconds();
  record.tokens_per_s = static_cast<double>(tokens_per_step()) / record.step_ms * 1e3;
  record.usage = comm::gather_values(
      usage_since(before, counters_of(mesh_, data_parallel_.hosts()), record.step_ms, mesh_),
      world_of(mesh_));
  if (replica().size() == 1) return record;
  record.overlap = overlap_.current() == parallel::Overlap::on ? "on" : "off";
  overlap_.record(record.largest_usage().step_ns);
  return record;
}

double Trainer::evaluate() {
  const at::NoGradGuard no_grad;
  const TrainOptions& o = job_.options();
  const int64_t available = job_.windows().validation_count();
  // The product of the flags alone may overflow.
  const int64_t windows = std::min(available, std::min(available, o.eval_batches) * o.batch_size);
  const int64_t replicas = mesh_.size(kDataAxis), own = mesh_.coordinate(kDataAxis);
  double loss = 0;
  for (int64_t round = 0; round * replicas * o.batch_size < windows; ++round) {
    const int64_t first = (round * replicas + own) * o.batch_size;
    if (first >= windows) {
      join_forward_();
      continue;
    }
    const Batch batch =
        validation_batch(job_.windows(), first, std::min<int64_t>(o.batch_size, windows - first));
    const nn::Step step = make_step(kernels::RandomKey::of(0));
    const nn::LossOptions options(static_cast<double>(windows * o.seq_len));
    loss += has_stages() ? stage_.evaluate({batch, step, options})
                         : model_.loss(batch.ids, batch.labels, options, step).local().item<double>();
  }
  data_parallel_.forget_parts_();
  at::Tensor sum = at::full({1}, loss, at::TensorOptions(at::kDouble).device(replica().device()));
  stages_and_replicas(mesh_).all_reduce_(sum);
  return sum.item<double>();
}

checkpoint::PendingSave Trainer::begin_save(const std::filesystem::path& directory, int64_t keep) {
  return {directory,
          *weights_,
          state(),
          keep,
          job_.auxiliary_files(),
          checkpoint::SaveGroup{world_of(mesh_), data_parallel_.owned()}};
}

}  // namespace shardwise::train
