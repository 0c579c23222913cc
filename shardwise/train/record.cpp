#include "shardwise/train/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardwise::train {

Usage StepRecord::largest_usage() const {
  Usage largest;
  for (const Usage& u : usage) {
    largest = {std::max(largest.step_ns, u.step_ns),
               std::max(largest.comm_ns, u.comm_ns),
               std::max(largest.wait_ns, u.wait_ns),
               std::max(largest.comm_bytes, u.comm_bytes),
               std::max(largest.copied_bytes, u.copied_bytes),
               std::max(largest.peak_memory_bytes, u.peak_memory_bytes)};
  }
  return largest;
}

std::string to_json(const StepRecord& record) {
  const Usage usage = record.largest_usage();
  nlohmann::ordered_json line{
      {"step", record.step},       {"tokens", record.tokens},
      {"loss", record.loss},       {"grad_norm", record.grad_norm},
      {"lr", record.lr},           {"tokens_per_s", record.tokens_per_s},
      {"step_ms", record.step_ms}, {"comm_ms", static_cast<double>(usage.comm_ns) / 1e6}};
  if (usage.wait_ns) line["wait_ms"] = static_cast<double>(*usage.wait_ns) / 1e6;
  line["comm_bytes"] = usage.comm_bytes;
  if (usage.copied_bytes) line["copied_bytes"] = *usage.copied_bytes;
  line["peak_memory_bytes"] = usage.peak_memory_bytes;
  if (!record.overlap.empty()) line["overlap"] = record.overlap;
  if (record.val_loss) line["val_loss"] = *record.val_loss;
  return line.dump();
}

}  // namespace shardwise::train
