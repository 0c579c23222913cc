// What `shardwise plan --task infer` prints.
#pragma once
#include <string>

#include "shardwise/plan/inference_search.h"

namespace shardwise::cli {

/// The plans of generation on a machine.
struct InferenceReport {
  std::string model;  // as in --model
  plan::InferenceTask task;
  plan::Machine machine;
  plan::InferenceSearchResult found;
  int64_t usable_bytes;  // that a rank may fill
};

/// Returns a table of the fastest plans, and why other splits are refused, at most `rows` of each.
std::string to_text(const InferenceReport& report, int64_t rows);
/// Returns a line with one JSON object.
std::string to_json(const InferenceReport& report);

}  // namespace shardwise::cli
