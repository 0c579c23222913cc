// What the comparisons of a grid found: the errors nearest to their bounds, and what each kind of tensor
// shows.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <regex>
#include <string>

#include "tests/support/decoder_space.h"
#include "tests/support/grid.h"
#include "tests/support/ranks.h"

namespace shardwise::testing {

/// Limits on a covering's errors as shares of their bound 8 r (docs/numerics.md §4). The bound has room for
/// the unluckiest of all comparisons; the comparisons of a covering together tell far smaller changes of
/// accuracy.
struct ShareLimits {
  double largest;        // of all comparisons
  double rms;            // of each kind of tensor; 1/8 is an rms error of r
  double rms_of_scores;  // of those that affect only attention's scores: queries, keys and their norms
};

/// Returns the largest shares that four coverings of grid_test showed, with their rms of a kind (fp32: 0.47,
/// and 0.16 of k_proj; bf16: 0.34 and 0.11), and a quarter more; so errors twice as large fail. The rms is
/// one of the model's own r or less, but for the queries and keys in fp32, whose scores, which the model
/// leaves exact (docs/numerics.md §3), round no finer than tensors.
inline ShareLimits limits_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return {.largest = 0.6, .rms = 1 / kTail, .rms_of_scores = 0.2};
  return {.largest = 0.45, .rms = 1 / kTail, .rms_of_scores = 1 / kTail};
}

/// The comparisons of one kind of tensor, over all layers.
class KindResult {
 public:
  void add(const Distance& distance) {
    const double share = distance.error / distance.bound;
    squares_ += share * share;
    detecting_ += distance.bound < 1;
    all_ += 1;
  }
  int all() const { return all_; }
  double rms_share() const { return std::sqrt(squares_ / all_); }

  /// The fraction of comparisons that would detect a gradient of zeros. In bf16 the rounding error may exceed
  /// a small gradient, above all those of queries and keys at few positions, which are differences of almost
  /// equal values.
  double detecting() const { return static_cast<double>(detecting_) / all_; }

 private:
  double squares_ = 0;
  int detecting_ = 0, all_ = 0;
};

/// The results of a grid's comparisons.
class GridResult {
 public:
  void add(const Distance& distance, const std::string& name) {
    if (distance.bound == 0) return;  // replicas must be equal
    static const std::regex layer("[.][0-9]+[.]");
    by_kind_[std::regex_replace(distance.what, layer, ".*.")].add(distance);
    const std::string where = distance.what + "; " + name;
    if (distance.error > error_) error_ = distance.error, where_ = where;
    const double share = distance.error / distance.bound;
    if (share > share_) share_ = share, nearest_ = where;
  }

  /// Comparisons that detect nothing must be rare.
  void expect_detection(double min_fraction) const {
    EXPECT_FALSE(by_kind_.empty());
    for (const auto& [kind, result] : by_kind_)
      EXPECT_GE(result.detecting(), min_fraction)
          << kind << ": a gradient of zeros would pass in the others of " << result.all();
  }

  void expect_shares(const ShareLimits& limits) const {
    EXPECT_LE(share_, limits.largest) << nearest_;
    static const std::regex of_scores("[qk]_(proj|norm)");
    for (const auto& [kind, result] : by_kind_) {
      const double limit = std::regex_search(kind, of_scores) ? limits.rms_of_scores : limits.rms;
      EXPECT_LE(result.rms_share(), limit) << kind << ", over " << result.all() << " comparisons";
    }
  }

  /// Formats the largest error, the one nearest to its bound, and the kind with the largest share.
  std::string summary() const {
    const auto worst =
        std::ranges::max_element(by_kind_, {}, [](const auto& k) { return k.second.rms_share(); });
    char text[2000];
    std::snprintf(text, sizeof text,
                  "largest error %.1e (%s); closest to its bound, %.2f of it (%s); rms by kind at "
                  "most %.3f (%s)",
                  error_, where_.c_str(), share_, nearest_.c_str(), worst->second.rms_share(),
                  worst->first.c_str());
    return text;
  }

 private:
  double error_ = 0, share_ = 0;
  std::string where_, nearest_;
  std::map<std::string, KindResult> by_kind_;
};

/// Runs the step on its ranks and compares all of its results with the reference.
inline void compare(const Case& c, const Prepared& prepared, GridResult& result) {
  Board board(c.ranks);
  std::mutex mutex;
  on_ranks(c.ranks, [&](const comm::Group& group) {
    const std::vector<Distance> all = distances(prepared, c.run, group, board);
    const std::lock_guard lock(mutex);
    for (const Distance& distance : all) {
      EXPECT_LE(distance.error, distance.bound)
          << distance.what << " on rank " << group.rank() << "; " << c.name;
      result.add(distance, c.name);
    }
  });
}

}  // namespace shardwise::testing
