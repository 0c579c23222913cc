// What an examination has found. Complete on rank 0; whether all holds is the same on every rank.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/doctor/results.h"

namespace shardwise::doctor {

/// How far one result of a sharded pass is from the truth, and may be.
struct Deviation {
  Label label;
  double difference = 0;  // the largest, absolute; not a number where a result is none
  double scale = 0;       // the truth's largest value
  double rounding = 0;    // how far the unsharded model in that dtype is off; 0 for fp64
  double bound = 0;

  bool holds() const { return difference <= bound; }  // false for no number
  /// Of the bound; infinite where there is no number.
  double share() const;
  /// Of the truth's largest value.
  double relative() const;
};

/// Of a stage, what comes nearest to its bound or is farthest beyond; null where the stage has none.
struct Worst {
  std::string where;
  const Deviation* activation = nullptr;
  const Deviation* gradient = nullptr;
};

/// A sharded pass beside the unsharded one.
struct Comparison {
  std::string task;
  Way way;
  int tp = 1;
  std::vector<Deviation> deviations;  // in the order in which an error would spread
  double norm = 0;                    // of the gradient

  /// The first result that is off by more than rounding allows; null: none.
  const Deviation* first_bug() const;
  /// In the forward's order.
  std::vector<Worst> by_layer() const;
  /// "training, TP=2+SP, bf16".
  std::string name() const;
};

/// Something that holds or does not, beside the distances.
struct Audit {
  std::string name;
  std::string of;  // the task, or the pass, that it is of; empty: all
  bool holds = true;
  std::string detail;  // what was looked at, or what is wrong

  /// "norm, plain, TP=2, fp64".
  std::string title() const { return of.empty() ? name : name + ", " + of; }
};

/// One rank's calls and bytes in one kind of collective, counted and by formula.
struct Traffic {
  std::string task;
  Way way;
  int tp, rank;
  std::string phase, collective;  // forward, backward or optimizer; all_reduce, ...
  plan::Traffic counted, expected;
  bool holds() const { return counted == expected; }
};

struct Report {
  std::vector<Comparison> comparisons;
  std::vector<Audit> audits;
  std::vector<Traffic> traffic;
  bool holds = true;  // all of it

  /// What is wrong first, in a line: other weights, then a result in fp64, one in the run's dtype, an audit,
  /// the traffic. None: nothing is.
  std::optional<std::string> finding() const;
};

}  // namespace shardwise::doctor
