#include "shardwise/doctor/sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/doctor/bound.h"

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::Collectives;

namespace {

/// Of sums in fp64 that are cut elsewhere.
constexpr double kSums = 1e-10;

bool is_near(double a, double b) {
  return std::abs(a - b) <= kSums * std::abs(b);
}

/// The norms of whole gradients, one after another.
class WholeNorms {
 public:
  void add(const at::Tensor& gradient) {
    const at::Tensor g = gradient.to(at::kDouble);
    norms_.one += g.abs().sum().item<double>();
    square_ += g.square().sum().item<double>();
    if (g.numel() > 0) norms_.inf = std::max(norms_.inf, g.abs().max().item<double>());
  }
  Norms norms() const { return {norms_.one, std::sqrt(square_), norms_.inf}; }

 private:
  Norms norms_;
  double square_ = 0;
};

/// Whether a weight gradient's every element is a bf16 number: it was never added up in fp32. One of zeros
/// may be right.
bool is_rounded_to_bf16(const Result& result) {
  const at::Tensor& g = result.whole;
  const bool is_product = result.label.is_gradient && result.label.tensor.ends_with("_proj.weight");
  return is_product && g.any().item<bool>() && g.equal(g.to(at::kBFloat16).to(g.scalar_type()));
}

bool is_of_parameter(const Label& label) {
  return label.is_gradient && (label.tensor.ends_with(".weight") || label.tensor.ends_with(".bias"));
}

/// Looks at the results of one pass as they come by.
class Judge {
 public:
  Judge(const Task& task, const Way& way, const Unsharded& unsharded, const comm::Group& group)
      : way_(way), unsharded_(unsharded), is_first_(group.rank() == 0) {
    compared_.comparison = {task.name, way, group.size(), {}};
  }

  void see(const Result& result) {
    if (result.differing > 0 && is_equal_) {
      is_equal_ = false;
      replicas_ = fmt::format("{} ranks hold another {} at {}", result.differing, result.label.text(),
                              result.label.where);
    }
    if (!is_first_) return;
    if (is_of_parameter(result.label)) norms_.add(result.whole);
    if (way_.dtype == at::kBFloat16 && is_rounded_to_bf16(result)) rounded_ = result.label;
    compared_.comparison.deviations.push_back(deviation(result));
  }

  Compared finish(const Norms& norms, const std::vector<Norms>& by_rank) {
    compared_.comparison.norm = norms.two;
    audit("replicas", is_equal_, is_equal_ ? "the same bits on every rank" : replicas_);
    audit_norms(norms, by_rank);
    if (rounded_)
      audit("main gradients", false,
            fmt::format("{} of {} holds bf16 numbers alone", rounded_->text(), rounded_->where));
    return std::move(compared_);
  }

 private:
  void audit(const std::string& name, bool holds, const std::string& detail) {
    compared_.audits.push_back({name, compared_.comparison.name(), holds, detail});
  }

  Deviation deviation(const Result& result) const {
    const auto found = unsharded_.exact.find(result.label);
    TORCH_INTERNAL_ASSERT(found != unsharded_.exact.end(), "TP=1 has no ", result.label.text());
    const Difference off = difference(result.whole, found->second);
    if (way_.is_exact()) return {result.label, off.largest, off.scale, 0, exact_bound(off.scale)};
    const double rounding = unsharded_.rounding.at(result.label);
    return {result.label, off.largest, off.scale, rounding, rounding_bound(rounding, off.scale, way_.dtype)};
  }

  /// Equal on all ranks; those of the whole gradients; in fp64, those of TP=1.
  void audit_norms(const Norms& norms, const std::vector<Norms>& by_rank) {
    const Norms whole = norms_.norms(), &expected = way_.is_exact() ? unsharded_.norms : whole;
    const bool is_same = std::ranges::all_of(by_rank, [&](const Norms& other) { return other == norms; });
    const auto near = [&](const Norms& b) {
      return is_near(norms.one, b.one) && is_near(norms.two, b.two) && is_near(norms.inf, b.inf);
    };
    const bool holds = !is_first_ || (is_same && near(whole) && near(expected));
    audit("norm", holds,
          !is_same ? "not the same on every rank"
                   : fmt::format("{:.10g}, largest {:.6g}; {} {:.10g}, largest {:.6g}", norms.two, norms.inf,
                                 way_.is_exact() ? "TP=1's" : "of the whole gradients", expected.two,
                                 expected.inf));
  }

  const Way& way_;
  const Unsharded& unsharded_;
  bool is_first_;
  bool is_equal_ = true;
  std::string replicas_;
  std::optional<Label> rounded_;
  WholeNorms norms_;
  Compared compared_;
};

/// One line for each kind of collective that is used or expected.
class Lines {
 public:
  Lines(const Task& task, const Way& way, int tp, int rank) : task_(task), way_(way), tp_(tp), rank_(rank) {}

  void add(const std::string& phase, const Collectives& counted, const Collectives& expected) {
    add(phase, "all_reduce", counted.all_reduce, expected.all_reduce);
    add(phase, "all_gather", counted.all_gather, expected.all_gather);
    add(phase, "reduce_scatter", counted.reduce_scatter, expected.reduce_scatter);
  }
  void add(const std::string& phase, const std::string& collective, const plan::Traffic& counted,
           const plan::Traffic& expected) {
    if (counted.calls > 0 || expected.calls > 0)
      lines_.push_back({task_.name, way_, tp_, rank_, phase, collective, counted, expected});
  }
  std::vector<Traffic> take() { return std::move(lines_); }

 private:
  const Task& task_;
  const Way& way_;
  int tp_, rank_;
  std::vector<Traffic> lines_;
};

std::vector<Traffic> traffic_of(const DecoderWeights& weights, const Task& task, const Way& way,
                                const Sent& own) {
  std::vector<Traffic> all;
  const int tp = weights.group().size();
  const plan::Workload workload = workload_of(weights.config(), task, way, tp);
  const std::vector<Sent> sent = comm::gather_values(own, weights.group());
  for (int rank = 0; rank < tp; ++rank) {
    const Sent& counted = sent[static_cast<size_t>(rank)];
    const plan::Passes expected = plan::micro_batch_communication(workload, rank);
    Lines lines(task, way, tp, rank);
    lines.add("forward", counted.passes.forward, expected.forward);
    lines.add("backward", counted.passes.backward, expected.backward);
    lines.add("optimizer", counted.optimizer, plan::optimizer_communication(workload, rank));
    lines.add("any", "others", counted.other, {});
    for (Traffic& line : lines.take()) all.push_back(std::move(line));
  }
  return all;
}

/// The loss is a mean of differences of two logits (a log-sum-exp moves by no more than the logits do), so
/// that it is allowed twice what they are off: it is one number, which may come out right by accident.
void widen_loss(std::map<Label, double>& rounding) {
  double& loss = rounding.at({"loss", "value"});
  loss = std::max(loss, 2 * rounding.at({"head", "logits"}));
}

}  // namespace

Compared compare(const DecoderWeights& weights, const Task& task, const Way& way,
                 const Unsharded& unsharded) {
  const Pass pass = run_pass(weights, task, way);
  Judge judge(task, way, unsharded, weights.group());
  for_each_result(weights, pass, way, [&](const Result& result) { judge.see(result); });
  Compared compared = judge.finish(pass.norms, comm::gather_values(pass.norms, weights.group()));
  compared.traffic = traffic_of(weights, task, way, pass.sent);
  return compared;
}

std::map<Label, double> rounding_of(const DecoderWeights& weights, const Pass& pass, const Way& way,
                                    const Results& exact) {
  std::map<Label, double> rounding;
  for_each_result(weights, pass, way, [&](const Result& result) {
    rounding[result.label] = difference(result.whole, exact.at(result.label)).largest;
  });
  widen_loss(rounding);
  return rounding;
}

}  // namespace shardwise::doctor
