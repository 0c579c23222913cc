#include "shardwise/doctor/examine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/doctor/bound.h"
#include "shardwise/doctor/crossings.h"
#include "shardwise/doctor/masks.h"
#include "shardwise/doctor/mesh.h"
#include "shardwise/doctor/rehearsal.h"
#include "shardwise/doctor/sharded.h"

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::Recompute;
using plan::SaveForBackward;
using plan::Stream;
using Weights = std::unique_ptr<DecoderWeights>;

namespace {

std::string difference_of(const parallel::Parameter& parameter, const Whole& whole) {
  const std::string where = whole.differing > 0 ? fmt::format(", on {} ranks", whole.differing) : "";
  return parameter.name + " is another than at TP=1" + where;
}

/// Every parameter's slices, put together, are the bits that TP=1 has. `alone` is null but on rank 0.
Audit audit_weights(const DecoderWeights& weights, const DecoderWeights* alone) {
  Audit audit{"weights", "", true, "the bits of TP=1 on every rank"};
  for (size_t i = 0; i < weights.roles().size(); ++i) {
    const parallel::Parameter& parameter = *weights.roles()[i].parameter;
    const Whole whole = whole_of(parameter, parameter.value, weights.group());
    if (!alone || !audit.holds) continue;
    if (whole.differing > 0 || !whole.tensor.equal(alone->roles()[i].parameter->value.detach()))
      audit = {"weights", "", false, difference_of(parameter, whole)};
  }
  return audit;
}

/// Clipped to half its norm, the gradient has half its norm.
Audit audit_clipping(const DecoderWeights& weights, const Way& way) {
  const parallel::ParamSpecs specs = specs_of(weights, way.stream);
  const auto norm_of = [&] { return parallel::gradient_norm(specs, parallel::Norm::two, weights.group()); };
  const double norm = norm_of(), most = norm / 2, expected = norm * most / (norm + 1e-6);
  parallel::clip_gradients_(specs, norm, most);
  const double clipped = norm_of();
  return {"clipping", "", std::abs(clipped - expected) <= kExactly * expected,
          fmt::format("to {:.10g}: the norm is {:.10g}", most, clipped)};
}

class Examiner {
 public:
  Examiner(const Subject& subject, const Examination& examination, const comm::Group& group)
      : examination_(examination), group_(group), config_(subject.config), dtype_(subject.dtype) {
    say("loading");
    weights_ = std::make_unique<DecoderWeights>(subject.config, group, dtype_);
    subject.load(*weights_);
    if (is_first()) {
      alone_ = std::make_unique<DecoderWeights>(subject.config, comm::Group(), dtype_);
      subject.load(*alone_);
      truth_ = in_dtype(*alone_, at::kDouble);
    }
    add(audit_names(*weights_));
    add(audit_weights(*weights_, alone_.get()));
    exact_ = in_dtype(*weights_, at::kDouble);
  }

  Report run() {
    say("collectives");
    add(audit_crossings(group_));
    add(audit_mesh(group_));
    const Task training = training_task(examination_.tokens, examination_.seed);
    for (const Stream stream : {Stream::tp, Stream::tp_sp})
      add(audit_masks(*weights_, training, {.dtype = dtype_, .stream = stream}));
    run_plain(plain_task(examination_.tokens));
    run_training(training);
    report_.holds = holds_on_first();
    if (report_.holds) run_rehearsal();
    return std::move(report_);
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  void say(const std::string& part) const {
    if (is_first() && examination_.on_part) examination_.on_part(part);
  }
  void add(Audit audit) { report_.audits.push_back(std::move(audit)); }

  void run_plain(const Task& task) {
    Unsharded unsharded = run_alone(task);
    if (is_first()) add(audit_embedding(*truth_, task, unsharded.exact));
    run_streams(task, unsharded);
  }

  void run_training(const Task& task) {
    const Unsharded unsharded = run_alone(task);
    if (is_first()) {
      say("gradients against differences");
      add(audit_gradients(*truth_, task, examination_.seed));
    }
    run_streams(task, unsharded);
    for (const SaveForBackward save_for_backward : {SaveForBackward::gathered, SaveForBackward::shard})
      run_way(task, {at::kDouble, Stream::tp_sp, save_for_backward}, unsharded);
    const Way last{at::kDouble, Stream::tp, SaveForBackward::shard_in_place, Recompute::full};
    run_way(task, {at::kDouble, Stream::tp_sp, SaveForBackward::shard_in_place, Recompute::full}, unsharded);
    run_way(task, last, unsharded);
    add(audit_clipping(*exact_, last));
  }

  /// On rank 0: the truth, and what rounding does to it.
  Unsharded run_alone(const Task& task) {
    Unsharded unsharded;
    if (!is_first()) return unsharded;
    const Way exact{.dtype = at::kDouble}, rounded{.dtype = dtype_};
    say(task.name + ", TP=1");
    const Pass pass = run_pass(*truth_, task, exact);
    unsharded.exact = results_of(*truth_, pass, exact);
    unsharded.norms = pass.norms;
    unsharded.rounding = rounding_of(*alone_, run_pass(*alone_, task, rounded), rounded, unsharded.exact);
    add(audit_loss(task, unsharded.exact));
    return unsharded;
  }

  void run_streams(const Task& task, const Unsharded& unsharded) {
    for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
      run_way(task, {.dtype = at::kDouble, .stream = stream}, unsharded);
      run_way(task, {.dtype = dtype_, .stream = stream}, unsharded);
    }
  }

  void run_way(const Task& task, const Way& way, const Unsharded& unsharded) {
    say(task.name + ", " + way.name(group_.size()) + ", " + dtype_name(way.dtype));
    Compared compared = compare(way.is_exact() ? *exact_ : *weights_, task, way, unsharded);
    report_.comparisons.push_back(std::move(compared.comparison));
    for (Audit& audit : compared.audits) add(std::move(audit));
    for (Traffic& line : compared.traffic) report_.traffic.push_back(std::move(line));
  }

  /// Training asks more than one micro-batch does; what is wrong with that would show here once more.
  void run_rehearsal() {
    say("a rehearsal of training");
    const Rehearsal rehearsal{config_, dtype_, examination_.directory, examination_.seed};
    for (Audit& audit : rehearse(rehearsal, group_)) add(std::move(audit));
    report_.holds = holds_on_first();
  }

  /// Rank 0's verdict, which has all of the report.
  bool holds_on_first() const { return comm::gather_values(static_cast<int>(holds()), group_).front() != 0; }

  bool holds() const {
    return std::ranges::none_of(report_.comparisons, [](const Comparison& c) { return c.first_bug(); }) &&
           std::ranges::all_of(report_.audits, [](const Audit& audit) { return audit.holds; }) &&
           std::ranges::all_of(report_.traffic, [](const Traffic& line) { return line.holds(); });
  }

  const Examination& examination_;
  comm::Group group_;
  model::Config config_;
  at::ScalarType dtype_;
  Weights weights_, exact_;  // this rank's slices, in the run's dtype and the same numbers in fp64
  Weights alone_, truth_;    // the unsharded model, on rank 0
  Report report_;
};

}  // namespace

Report examine(const Subject& subject, const Examination& examination, const comm::Group& group) {
  TORCH_CHECK_VALUE(group.size() > 1, "doctor: TP=1 is compared with at least 2 ranks; got ", group.size());
  return Examiner(subject, examination, group).run();
}

}  // namespace shardwise::doctor
