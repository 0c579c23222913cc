// Selects whether a run overlaps its collectives with their GEMMs: as requested, or by timing a few steps of
// the run with and without overlap. Both settings compute the same bits, so measuring changes no result.
// If nothing can overlap, both settings run the same code, and there is nothing to choose.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/parallel/step.h"

namespace shardwise::train {

/// Checks that --overlap on has something to overlap. Errors: base::CollectiveError on every rank.
void check_overlap(const std::string& setting, const comm::Group& group);

/// The overlap setting of a run, fixed or chosen by measurement.
class OverlapChoice {
 public:
  using Overlap = parallel::Overlap;

  /// With `can_overlap` false, auto is off and measures nothing. Throws c10::ValueError if `setting` is not
  /// auto, on or off.
  explicit OverlapChoice(const std::string& setting, bool can_overlap = true);

  /// The setting of the next step.
  Overlap current() const;
  /// Records the time of the step that ran with `current()`. Pass the same value on every rank, so that all
  /// ranks choose the same setting.
  void record(int64_t step_ns);

  /// A line with the setting that `auto` has chosen and why: by its timings, or from the start because
  /// nothing can overlap; nullopt otherwise.
  const std::optional<std::string>& decision() const { return decision_; }

 private:
  /// Measured steps per setting, after one warm-up step. Even, so that the alternation is symmetric.
  static constexpr int kStepsPerSetting = 6;

  void choose();

  std::optional<Overlap> chosen_;
  int64_t steps_ = 0;
  std::array<std::vector<int64_t>, 2> step_ns_;  // off, on
  std::optional<std::string> decision_;
};

}  // namespace shardwise::train
