// Whether a run's crossings go on beside their products: as asked, or what a few of its own steps measured.
//
// Steps are the same bits either way, so that measuring costs nothing but the slower ones among them.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/parallel/step.h"

namespace shardwise::train {

class OverlapChoice {
 public:
  using Overlap = parallel::Overlap;

  /// `asked`: auto, on or off. Errors: c10::ValueError for another word.
  explicit OverlapChoice(const std::string& asked);

  /// For the next step.
  Overlap current() const;
  /// Tells what the step took that was done with `current()`: the same figure on every rank, so that all
  /// choose alike.
  void record(int64_t step_ns);

  /// Of auto, once it is made: a line that says what was chosen, and why.
  const std::optional<std::string>& finding() const { return finding_; }

 private:
  /// Steps measured of both, even for a fair order, after one that warms up.
  static constexpr int kEach = 6;

  void choose();

  std::optional<Overlap> made_;
  int64_t steps_ = 0;
  std::array<std::vector<int64_t>, 2> taken_ns_;  // off, on
  std::optional<std::string> finding_;
};

}  // namespace shardwise::train
