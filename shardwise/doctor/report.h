// The doctor's report. It is complete on rank 0; `passed` is equal on every rank.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/doctor/results.h"

namespace shardwise::doctor {

/// The difference of one result of a sharded run from the reference, and its bound.
struct Deviation {
  Label label;
  double difference = 0;  // largest absolute difference; NaN if a result has NaN or Inf
  double scale = 0;       // largest absolute value of the reference
  double rounding = 0;    // difference of the unsharded model in that dtype; 0 for fp64
  double bound = 0;

  bool is_within_bound() const { return difference <= bound; }  // false for NaN
  /// Returns difference / bound; Inf for NaN.
  double bound_ratio() const;
  /// Returns difference / scale.
  double relative() const;
};

/// A module's deviations with the largest bound ratio; null if it has none.
struct LargestDeviations {
  std::string module;
  const Deviation* activation = nullptr;
  const Deviation* gradient = nullptr;
};

/// A sharded run compared with the unsharded one.
struct Comparison {
  std::string test_case;
  RunConfig run_config;
  int tp = 1;
  std::vector<Deviation> deviations;  // in the order in which an error propagates
  double norm = 0;                    // of the gradient

  /// Returns the first result whose difference exceeds its bound, or null.
  const Deviation* first_bug() const;
  /// Returns each module's largest deviations in forward order.
  std::vector<LargestDeviations> by_layer() const;
  /// "training, TP=2+SP, bf16".
  std::string name() const;
};

/// A check that passes or fails, other than a comparison of results.
struct Check {
  std::string name;
  std::string scope;  // the test case or run that is checked; empty: all
  bool passed = true;
  std::string detail;  // what was checked, or what is wrong

  /// "norm, plain, TP=2, fp64".
  std::string title() const { return scope.empty() ? name : name + ", " + scope; }
};

/// Returns `passed` if `error` is empty on every rank, or else the failed check with the first rank's error.
/// Collective. Cost: that of comm::first_text.
Check verdict_of_all_ranks(const Check& passed, const std::string& error, const comm::Group& group);

/// One rank's calls and bytes in one kind of collective, counted and by formula.
struct TrafficLine {
  std::string test_case;
  RunConfig run_config;
  int tp, rank;
  std::string phase, collective;  // forward, backward or optimizer; all_reduce, ...
  plan::Traffic counted, expected;
  bool matches() const { return counted == expected; }
};

struct Report {
  std::vector<Comparison> comparisons;
  std::vector<Check> checks;
  std::vector<TrafficLine> traffic;
  bool passed = true;  // comparisons, checks and traffic

  /// Returns one line about the most likely cause: wrong weights, then a result in fp64, a result in the
  /// run's dtype, another check, traffic. Returns nullopt if all passed.
  std::optional<std::string> bug_summary() const;
};

}  // namespace shardwise::doctor
