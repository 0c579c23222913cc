#include "shardwise/doctor/run_doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/doctor/compare.h"
#include "shardwise/doctor/group_checks.h"
#include "shardwise/doctor/mesh_checks.h"
#include "shardwise/doctor/training_smoke_test.h"

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::ColumnInputStorage;
using plan::Parallelism;
using plan::Recompute;
using Weights = std::unique_ptr<DecoderWeights>;

namespace {

/// Separates these random numbers from those of weights and masks.
constexpr uint64_t kRandomStream = 2;

std::string difference_of(const parallel::Parameter& parameter, const GatheredTensor& full) {
  const std::string ranks = full.differing > 0 ? fmt::format(" on {} ranks", full.differing) : "";
  return parameter.name + " differs from TP=1" + ranks;
}

/// Checks that every parameter's shards are bit-equal to TP=1. `unsharded` is null except on rank 0.
Check check_weights(const DecoderWeights& weights, const DecoderWeights* unsharded,
                    const std::string& scope) {
  Check check{"weights", scope, true, "bit-equal to TP=1 on every rank"};
  for (size_t i = 0; i < weights.used_parameters().size(); ++i) {
    const parallel::Parameter& parameter = *weights.used_parameters()[i].parameter;
    const GatheredTensor full = full_tensor(parameter, parameter.value, weights.group());
    if (!unsharded || !check.passed) continue;
    const at::Tensor expected = unsharded->used_parameters()[i].parameter->value.detach();
    if (full.differing > 0 || !full.tensor.cpu().equal(expected))
      check = {"weights", scope, false, difference_of(parameter, full)};
  }
  return check;
}

/// Checks that a gradient clipped to half its norm has half its norm.
Check check_clipping(const DecoderWeights& weights, const RunConfig& run_config) {
  const parallel::ParamSpecs specs = specs_of(weights, run_config.parallelism);
  const auto norm_of = [&] {
    return parallel::gradient_norm(specs, parallel::NormOrder::two, weights.group());
  };
  const double norm = norm_of(), max_norm = norm / 2, expected = norm * max_norm / (norm + 1e-6);
  parallel::clip_gradients_(specs, norm, max_norm);
  const double clipped = norm_of();
  return {"clipping", "", std::abs(clipped - expected) <= kFp64Tolerance * expected,
          fmt::format("to {:.10g}: the norm is {:.10g}", max_norm, clipped)};
}

class Doctor {
 public:
  Doctor(const Target& target, const RunOptions& options, const comm::Group& group)
      : options_(options), group_(group), config_(target.config), dtype_(target.dtype) {
    announce("loading");
    weights_ = std::make_unique<DecoderWeights>(target.config, group, dtype_);
    target.load(*weights_);
    if (is_first()) {
      unsharded_ = std::make_unique<DecoderWeights>(target.config, comm::Group(), dtype_);
      target.load(*unsharded_);
      reference_ = in_dtype(*unsharded_, at::kDouble);
    }
    add(check_parameter_names(*weights_));
    add(check_weights(*weights_, unsharded_.get(), ""));
    load_on_device(target);
    fp64_ = in_dtype(*weights_, at::kDouble);
  }

  Report run() {
    announce("collectives");
    add(check_conjugate_collectives(group_));
    add(check_mesh(group_));
    const TestCase training = training_case(options_.tokens, options_.seed);
    for (const Parallelism parallelism : {Parallelism::tp, Parallelism::tp_sp})
      add(check_dropout_masks(*weights_, training, {.dtype = dtype_, .parallelism = parallelism}));
    run_plain(plain_case(options_.tokens));
    run_training(training);
    report_.passed = passed_on_first();
    if (report_.passed) run_smoke_test();
    return std::move(report_);
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  void announce(const std::string& part) const {
    if (is_first() && options_.on_part) options_.on_part(part);
  }
  void add(Check check) { report_.checks.push_back(std::move(check)); }

  void load_on_device(const Target& target) {
    if (!options_.device) return;
    on_device_ = std::make_unique<DecoderWeights>(target.config, *options_.device, dtype_);
    target.load(*on_device_);
    add(check_weights(*on_device_, unsharded_.get(), "on " + options_.device_name));
  }

  void run_plain(const TestCase& test_case) {
    Unsharded unsharded = run_unsharded(test_case);
    if (is_first()) add(check_embedding(*reference_, test_case, unsharded.reference));
    run_tp_and_sp(test_case, unsharded);
  }

  void run_training(const TestCase& test_case) {
    const Unsharded unsharded = run_unsharded(test_case);
    if (is_first()) {
      announce("gradients against finite differences");
      add(check_gradients(*reference_, test_case, options_.seed));
    }
    run_tp_and_sp(test_case, unsharded);
    for (const auto storage : {ColumnInputStorage::gathered, ColumnInputStorage::shard})
      run_sharded(test_case, {at::kDouble, Parallelism::tp_sp, storage}, unsharded);
    const RunConfig last{at::kDouble, Parallelism::tp, ColumnInputStorage::shard_in_place, Recompute::full};
    run_sharded(test_case,
                {at::kDouble, Parallelism::tp_sp, ColumnInputStorage::shard_in_place, Recompute::full},
                unsharded);
    run_sharded(test_case, last, unsharded);
    add(check_clipping(*fp64_, last));
  }

  /// Runs the reference and the unsharded model in the run's dtype on rank 0.
  Unsharded run_unsharded(const TestCase& test_case) {
    Unsharded unsharded;
    if (!is_first()) return unsharded;
    const RunConfig fp64{.dtype = at::kDouble}, rounded{.dtype = dtype_};
    announce(test_case.name + ", TP=1");
    const Trace trace = run_traced(*reference_, test_case, fp64);
    unsharded.reference = results_of(*reference_, trace, fp64);
    unsharded.norms = trace.norms;
    unsharded.rounding =
        rounding_of(*unsharded_, run_traced(*unsharded_, test_case, rounded), rounded, unsharded.reference);
    add(check_loss(test_case, unsharded.reference));
    return unsharded;
  }

  void run_tp_and_sp(const TestCase& test_case, const Unsharded& unsharded) {
    for (const Parallelism parallelism : {Parallelism::tp, Parallelism::tp_sp}) {
      run_sharded(test_case, {.dtype = at::kDouble, .parallelism = parallelism}, unsharded);
      run_sharded(test_case, {.dtype = dtype_, .parallelism = parallelism}, unsharded);
      if (on_device_) run_sharded(test_case, on_device(parallelism), unsharded);
    }
  }

  /// A device has no symmetric heap: column-parallel layers save their shard of the input.
  RunConfig on_device(Parallelism parallelism) const {
    return {.dtype = dtype_,
            .parallelism = parallelism,
            .column_input_storage = ColumnInputStorage::shard,
            .device = options_.device_name};
  }

  const DecoderWeights& weights_of(const RunConfig& run_config) const {
    if (run_config.device != "cpu") return *on_device_;
    return run_config.is_fp64() ? *fp64_ : *weights_;
  }

  void run_sharded(const TestCase& test_case, const RunConfig& run_config, const Unsharded& unsharded) {
    announce(test_case.name + ", " + run_config.name(group_.size()) + ", " + dtype_name(run_config.dtype));
    Compared compared = compare(weights_of(run_config), test_case, run_config, unsharded);
    report_.comparisons.push_back(std::move(compared.comparison));
    for (Check& check : compared.checks) add(std::move(check));
    for (TrafficLine& line : compared.traffic) report_.traffic.push_back(std::move(line));
  }

  /// Runs only if all else passed, because any earlier bug would also fail here.
  void run_smoke_test() {
    announce("training smoke test");
    const TrainingSmokeTest smoke_test{config_, dtype_, options_.directory, options_.seed};
    for (Check& check : run_training_smoke_test(smoke_test, group_)) add(std::move(check));
    announce("replicas and pipeline stages");
    for (Check& check : run_mesh_checks(smoke_test, group_, options_.connect)) add(std::move(check));
    report_.passed = passed_on_first();
  }

  /// Returns rank 0's verdict; only rank 0 has the full report.
  bool passed_on_first() const {
    return comm::gather_values(static_cast<int>(passed()), group_).front() != 0;
  }

  bool passed() const {
    return std::ranges::none_of(report_.comparisons, [](const Comparison& c) { return c.first_bug(); }) &&
           std::ranges::all_of(report_.checks, [](const Check& check) { return check.passed; }) &&
           std::ranges::all_of(report_.traffic, [](const TrafficLine& line) { return line.matches(); });
  }

  const RunOptions& options_;
  comm::Group group_;
  config::Config config_;
  at::ScalarType dtype_;
  Weights weights_, fp64_;         // this rank's shards, in the run's dtype and converted to fp64
  Weights on_device_;              // the shards in the run's dtype on the device; null without one
  Weights unsharded_, reference_;  // the unsharded model in the same dtypes, on rank 0
  Report report_;
};

}  // namespace

void randomize_1d_parameters_(model::DecoderWeights& weights, uint64_t seed) {
  const nn::UsedParameters& used_parameters = weights.used_parameters();
  for (size_t i = 0; i < used_parameters.size(); ++i) {
    const parallel::Parameter& parameter = *used_parameters[i].parameter;
    if (parameter.global_shape.size() != 1) continue;
    at::Tensor value = parameter.value.detach();
    const auto pieces = parameter.rule.is_replicated() ? std::vector<base::ShardRule::Piece>()
                                                       : parameter.rule.pieces(weights.group().rank());
    kernels::fill_normal_(value, parameter.global_shape, /*dim=*/0, pieces,
                          kernels::RandomKey::of(seed).fold(kRandomStream).fold(i),
                          parameter.name.ends_with(".bias") ? 0 : 1, kInitStd);
  }
}

Report run_doctor(const Target& target, const RunOptions& options, const comm::Group& group) {
  TORCH_CHECK_VALUE(group.size() > 1,
                    "doctor: the group must have at least 2 ranks to compare with TP=1; got ", group.size(),
                    " [SW0394]");
  return Doctor(target, options, group).run();
}

}  // namespace shardwise::doctor
