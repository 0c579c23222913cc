#include "shardwise/doctor/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/doctor/results.h"

namespace shardwise::doctor {

using model::DecoderWeights;
using plan::Collectives;

namespace {

/// Relative tolerance of fp64 sums in different orders.
constexpr double kSumTolerance = 1e-10;

bool is_near(double a, double b) {
  return std::abs(a - b) <= kSumTolerance * std::abs(b);
}

/// Accumulates the norms of full gradients.
class FullNorms {
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

/// True if every element of a weight gradient is a bf16 number, so it was not accumulated in fp32. A gradient
/// of zeros may be correct.
bool is_rounded_to_bf16(const Result& result) {
  const at::Tensor& g = result.full;
  const bool is_weight = result.label.is_gradient && result.label.tensor.ends_with("_proj.weight");
  return is_weight && g.any().item<bool>() && g.equal(g.to(at::kBFloat16).to(g.scalar_type()));
}

bool is_of_parameter(const Label& label) {
  return label.is_gradient && (label.tensor.ends_with(".weight") || label.tensor.ends_with(".bias"));
}

/// Compares the results of one run as for_each_result visits them.
class ResultComparer {
 public:
  ResultComparer(const TestCase& test_case, const RunConfig& run_config, const Unsharded& unsharded,
                 const comm::Group& group)
      : run_config_(run_config), unsharded_(unsharded), is_first_(group.rank() == 0) {
    compared_.comparison = {test_case.name, run_config, group.size(), {}};
  }

  void compare(const Result& result) {
    if (result.differing > 0 && is_equal_) {
      is_equal_ = false;
      replicas_error_ = fmt::format("{} ranks have another {} at {}", result.differing, result.label.text(),
                                    result.label.module);
    }
    if (!is_first_) return;
    if (is_of_parameter(result.label)) norms_.add(result.full);
    if (run_config_.dtype == at::kBFloat16 && is_rounded_to_bf16(result)) rounded_ = result.label;
    compared_.comparison.deviations.push_back(deviation(result));
  }

  Compared take(const Norms& norms, const std::vector<Norms>& by_rank) {
    compared_.comparison.norm = norms.two;
    add_check("replicas", is_equal_, is_equal_ ? "bit-equal on every rank" : replicas_error_);
    check_norms(norms, by_rank);
    if (rounded_)
      add_check("main gradients", false,
                fmt::format("{} of {} has only bf16 numbers; it must be accumulated in fp32",
                            rounded_->text(), rounded_->module));
    return std::move(compared_);
  }

 private:
  void add_check(const std::string& name, bool passed, const std::string& detail) {
    compared_.checks.push_back({name, compared_.comparison.name(), passed, detail});
  }

  Deviation deviation(const Result& result) const {
    const auto found = unsharded_.reference.find(result.label);
    TORCH_INTERNAL_ASSERT(found != unsharded_.reference.end(), "TP=1 has no ", result.label.text());
    const Difference actual = difference(result.full, found->second);
    if (run_config_.is_fp64())
      return {result.label, actual.largest, actual.scale, 0, fp64_bound(actual.scale)};
    const double rounding = unsharded_.rounding.at(result.label);
    return {result.label, actual.largest, actual.scale, rounding,
            rounding_bound(rounding, actual.scale, run_config_.dtype)};
  }

  /// Checks that the norms are equal on all ranks and match those of the full gradients; in fp64, those of
  /// TP=1.
  void check_norms(const Norms& norms, const std::vector<Norms>& by_rank) {
    const Norms full = norms_.norms(), &expected = run_config_.is_fp64() ? unsharded_.norms : full;
    const bool is_same_everywhere =
        std::ranges::all_of(by_rank, [&](const Norms& other) { return other == norms; });
    const auto near = [&](const Norms& b) {
      return is_near(norms.one, b.one) && is_near(norms.two, b.two) && is_near(norms.inf, b.inf);
    };
    const bool passed = !is_first_ || (is_same_everywhere && near(full) && near(expected));
    add_check("gradient norm", passed,
              !is_same_everywhere
                  ? "not equal on every rank"
                  : fmt::format("{:.10g}, largest {:.6g}; {} {:.10g}, largest {:.6g}", norms.two, norms.inf,
                                run_config_.is_fp64() ? "TP=1's" : "of the full gradients", expected.two,
                                expected.inf));
  }

  const RunConfig& run_config_;
  const Unsharded& unsharded_;
  bool is_first_;
  bool is_equal_ = true;
  std::string replicas_error_;
  std::optional<Label> rounded_;
  FullNorms norms_;
  Compared compared_;
};

/// Builds one line for each kind of collective that is used or expected.
class TrafficLines {
 public:
  TrafficLines(const TestCase& test_case, const RunConfig& run_config, int tp, int rank)
      : test_case_(test_case), run_config_(run_config), tp_(tp), rank_(rank) {}

  void add(const std::string& phase, const Collectives& counted, const Collectives& expected) {
    add(phase, "all_reduce", counted.all_reduce, expected.all_reduce);
    add(phase, "all_gather", counted.all_gather, expected.all_gather);
    add(phase, "reduce_scatter", counted.reduce_scatter, expected.reduce_scatter);
  }
  void add(const std::string& phase, const std::string& collective, const plan::Traffic& counted,
           const plan::Traffic& expected) {
    if (counted.calls > 0 || expected.calls > 0)
      lines_.push_back({test_case_.name, run_config_, tp_, rank_, phase, collective, counted, expected});
  }
  std::vector<TrafficLine> take() { return std::move(lines_); }

 private:
  const TestCase& test_case_;
  const RunConfig& run_config_;
  int tp_, rank_;
  std::vector<TrafficLine> lines_;
};

std::vector<TrafficLine> traffic_of(const DecoderWeights& weights, const TestCase& test_case,
                                    const RunConfig& run_config, const Sent& local) {
  std::vector<TrafficLine> all;
  const int tp = weights.group().size();
  const plan::Workload workload = workload_of(weights.config(), test_case, run_config, tp);
  const std::vector<Sent> sent = comm::gather_values(local, weights.group());
  for (int rank = 0; rank < tp; ++rank) {
    const Sent& counted = sent[static_cast<size_t>(rank)];
    const plan::Passes expected = plan::micro_batch_communication(workload, rank);
    TrafficLines lines(test_case, run_config, tp, rank);
    lines.add("forward", counted.passes.forward, expected.forward);
    lines.add("backward", counted.passes.backward, expected.backward);
    lines.add("optimizer", counted.optimizer, plan::optimizer_communication(workload, rank));
    lines.add("any", "others", counted.other, {});
    for (TrafficLine& line : lines.take()) all.push_back(std::move(line));
  }
  return all;
}

/// Allows the loss twice the rounding of the logits. The loss is a mean of differences of two logits (a
/// log-sum-exp changes by no more than the logits do), and as a single number its own rounding may be small
/// by accident.
void widen_loss(std::map<Label, double>& rounding) {
  double& loss = rounding.at({"loss", "value"});
  loss = std::max(loss, 2 * rounding.at({"head", "logits"}));
}

}  // namespace

Compared compare(const DecoderWeights& weights, const TestCase& test_case, const RunConfig& run_config,
                 const Unsharded& unsharded) {
  const Trace trace = run_traced(weights, test_case, run_config);
  ResultComparer comparer(test_case, run_config, unsharded, weights.group());
  for_each_result(weights, trace, run_config, [&](const Result& result) { comparer.compare(result); });
  Compared compared = comparer.take(trace.norms, comm::gather_values(trace.norms, weights.group()));
  compared.traffic = traffic_of(weights, test_case, run_config, trace.sent);
  return compared;
}

std::map<Label, double> rounding_of(const DecoderWeights& weights, const Trace& trace,
                                    const RunConfig& run_config, const Results& reference) {
  std::map<Label, double> rounding;
  for_each_result(weights, trace, run_config, [&](const Result& result) {
    rounding[result.label] = difference(result.full, reference.at(result.label)).largest;
  });
  widen_loss(rounding);
  return rounding;
}

}  // namespace shardwise::doctor
