#include "shardwise/train/overlap_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/error.h"

namespace shardwise::train {
namespace {

double median_ms(std::vector<int64_t> ns) {
  const auto middle = ns.begin() + std::ssize(ns) / 2;
  std::nth_element(ns.begin(), middle, ns.end());
  return static_cast<double>(*middle) / 1e6;
}

}  // namespace

// A group of one communicates nothing, with either setting.
void check_overlap(const std::string& setting, const comm::Group& group) {
  if (setting != "on" || group.size() == 1 || parallel::can_overlap(group)) return;
  throw base::CollectiveError(fmt::format(
      "train: --overlap on needs ranks that share memory, or a backend that progresses asynchronously; got "
      "{} ranks over MPI, whose collectives run inside their calls; leave it out [SW0028]",
      group.size()));
}

OverlapChoice::OverlapChoice(const std::string& setting, bool can_overlap) {
  TORCH_CHECK_VALUE(setting == "auto" || setting == "on" || setting == "off",
                    "train: --overlap must be auto, on or off; got ", base::shortened(setting), " [SW0026]");
  if (setting != "auto") chosen_ = setting == "on" ? Overlap::on : Overlap::off;
  if (can_overlap || setting != "auto") return;
  chosen_ = Overlap::off;
  decision_ = "overlap off: collectives over MPI run inside their calls, so there is nothing to overlap";
}

// After the warm-up step on, off, off, on, ..., so that a drift of the step time affects both settings.
OverlapChoice::Overlap OverlapChoice::current() const {
  return chosen_.value_or(steps_ / 2 % 2 == 0 ? Overlap::on : Overlap::off);
}

void OverlapChoice::record(int64_t step_ns) {
  if (chosen_) return;
  if (steps_ > 0) step_ns_[size_t(current())].push_back(step_ns);
  steps_ += 1;
  if (steps_ > int64_t{2} * kStepsPerSetting) choose();
}

void OverlapChoice::choose() {
  const double off = median_ms(step_ns_[0]), on = median_ms(step_ns_[1]);
  chosen_ = on <= off ? Overlap::on : Overlap::off;
  decision_ = fmt::format("overlap {}: {:.4g} ms a step with it, {:.4g} without (medians of {} steps each)",
                          chosen_ == Overlap::on ? "on" : "off", on, off, kStepsPerSetting);
}

}  // namespace shardwise::train
