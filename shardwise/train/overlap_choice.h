// Selects whether a run overlaps its collectives with their GEMMs: as requested, or by timing a few steps of
// the run with and without overlap. Both settings compute the same bits, so measuring changes no result.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/parallel/step.h"

namespace shardwise::train {

/// The overlap setting of a run, fixed or chosen by measurement.
class OverlapChoice {
 public:
  using Overlap = parallel::Overlap;

  /// Throws c10::ValueError if `setting` is not auto, on or off.
  explicit OverlapChoice(const std::string& setting);

  /// The setting of the next step.
  Overlap current() const;
  /// Records the time of the step that ran with `current()`. Pass the same value on every rank, so that all
  /// ranks choose the same setting.
  void record(int64_t step_ns);

  /// A line with the chosen setting and its timings, once `auto` has chosen; nullopt otherwise.
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
