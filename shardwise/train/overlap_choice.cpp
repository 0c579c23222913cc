#include "shardwise/train/overlap_choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise::train {
namespace {

double median_ms(std::vector<int64_t> ns) {
  const auto middle = ns.begin() + std::ssize(ns) / 2;
  std::nth_element(ns.begin(), middle, ns.end());
  return static_cast<double>(*middle) / 1e6;
}

}  // namespace

OverlapChoice::OverlapChoice(const std::string& asked) {
  TORCH_CHECK_VALUE(asked == "auto" || asked == "on" || asked == "off",
                    "train: --overlap must be auto, on or off; got ", asked);
  if (asked != "auto") made_ = asked == "on" ? Overlap::on : Overlap::off;
}

// After the first on, off, off, on, ...: what drifts falls on both.
OverlapChoice::Overlap OverlapChoice::current() const {
  return made_.value_or(steps_ / 2 % 2 == 0 ? Overlap::on : Overlap::off);
}

void OverlapChoice::record(int64_t step_ns) {
  if (made_) return;
  if (steps_ > 0) taken_ns_[size_t(current())].push_back(step_ns);
  steps_ += 1;
  if (steps_ > 2 * kEach) choose();
}

void OverlapChoice::choose() {
  const double off = median_ms(taken_ns_[0]), on = median_ms(taken_ns_[1]);
  made_ = on <= off ? Overlap::on : Overlap::off;
  finding_ = fmt::format("overlap {}: {:.4g} ms a step with it, {:.4g} without (medians of {} steps each)",
                         made_ == Overlap::on ? "on" : "off", on, off, kEach);
}

}  // namespace shardwise::train
