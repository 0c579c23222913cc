#include "shardwise/train/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardwise::train {
namespace {

double milliseconds(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

/// Returns the figures of each axis that sent or waited.
nlohmann::ordered_json to_json(const std::array<AxisUsage, kAxes.size()>& axes) {
  nlohmann::ordered_json json;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const auto& [comm_ns, wait_ns, comm_bytes] = axes[axis];
    if (comm_ns == 0 && comm_bytes == 0) continue;
    nlohmann::ordered_json& of_axis = json[kAxes[axis]] = {{"comm_ms", milliseconds(comm_ns)}};
    if (wait_ns) of_axis["wait_ms"] = milliseconds(*wait_ns);
    of_axis["comm_bytes"] = comm_bytes;
  }
  return json;
}

AxisUsage largest_of(const AxisUsage& a, const AxisUsage& b) {
  return {std::max(a.comm_ns, b.comm_ns), std::max(a.wait_ns, b.wait_ns),
          std::max(a.comm_bytes, b.comm_bytes)};
}

}  // namespace

Usage StepRecord::largest_usage() const {
  Usage largest;
  for (const Usage& u : usage) {
    largest.step_ns = std::max(largest.step_ns, u.step_ns);
    largest.comm_ns = std::max(largest.comm_ns, u.comm_ns);
    largest.wait_ns = std::max(largest.wait_ns, u.wait_ns);
    largest.comm_bytes = std::max(largest.comm_bytes, u.comm_bytes);
    largest.copied_bytes = std::max(largest.copied_bytes, u.copied_bytes);
    largest.peak_memory_bytes = std::max(largest.peak_memory_bytes, u.peak_memory_bytes);
    for (size_t axis = 0; axis < kAxes.size(); ++axis)
      largest.axes[axis] = largest_of(largest.axes[axis], u.axes[axis]);
  }
  return largest;
}

std::string to_json(const StepRecord& record) {
  const Usage usage = record.largest_usage();
  nlohmann::ordered_json line{{"step", record.step},       {"tokens", record.tokens},
                              {"loss", record.loss},       {"grad_norm", record.grad_norm},
                              {"lr", record.lr},           {"tokens_per_s", record.tokens_per_s},
                              {"step_ms", record.step_ms}, {"comm_ms", milliseconds(usage.comm_ns)}};
  if (usage.wait_ns) line["wait_ms"] = milliseconds(*usage.wait_ns);
  line["comm_bytes"] = usage.comm_bytes;
  if (usage.copied_bytes) line["copied_bytes"] = *usage.copied_bytes;
  line["peak_memory_bytes"] = usage.peak_memory_bytes;
  if (const nlohmann::ordered_json axes = to_json(usage.axes); !axes.empty()) line["axes"] = axes;
  if (!record.overlap.empty()) line["overlap"] = record.overlap;
  if (record.val_loss) line["val_loss"] = *record.val_loss;
  return line.dump();
}

}  // namespace shardwise::train
