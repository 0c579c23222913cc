// The learning rate schedule: linear warm-up, then cosine decay to the last step.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "shardwise/train/options.h"

namespace shardwise::train {

/// A learning rate schedule with linear warm-up and cosine decay.
struct Schedule {
  double peak;      // learning rate after the warm-up
  double last;      // learning rate from the horizon on
  int64_t warmup;   // steps
  int64_t horizon;  // steps

  /// Returns the schedule of a run.
  static Schedule of(const TrainOptions& options) {
    return {options.lr, options.final_lr(), options.warmup_steps(), options.steps};
  }

  /// Returns the learning rate of step 1, 2, ...: peak·step/warmup during warm-up, `last` from the horizon
  /// on. Source: Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts.
  double learning_rate(int64_t step) const {
    if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
    if (step >= horizon) return last;
    const double done = static_cast<double>(step - warmup) / static_cast<double>(horizon - warmup);
    return last + (peak - last) * (1 + std::cos(std::numbers::pi * done)) / 2;
  }
};

}  // namespace shardwise::train
