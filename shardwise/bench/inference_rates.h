// Measures the rates of inference in bf16 (plan/inference_rates.h).
#pragma once
#include <string>

#include "shardwise/bench/measurements.h"
#include "shardwise/plan/inference_rates.h"

namespace shardwise::bench {

/// The number of measurements of both, for progress.
size_t inference_measurements();
/// Measures products, attention to a cache, and reading. `source` says where the figures are from.
/// Collective.
plan::InferenceRates measure_inference(const std::string& source, Measurements& measurements);
/// Sets the time between the operations of a block: what tokens of a small model take beyond their plan for
/// `machine`, all of whose other rates are measured. Collective.
void measure_blocks_(plan::Machine& machine, Measurements& measurements);

}  // namespace shardwise::bench
