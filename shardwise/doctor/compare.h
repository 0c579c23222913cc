// Compares a sharded run with the unsharded one.
#pragma once
#include "shardwise/doctor/reference.h"

namespace shardwise::doctor {

/// Results of an unsharded model; filled on rank 0 only.
struct Unsharded {
  Results reference;                 // in fp64
  std::map<Label, double> rounding;  // largest difference of the run's dtype from it, by result
  Norms norms;                       // of the reference gradients
};

/// The parts of a report about one sharded run.
struct Compared {
  Comparison comparison;
  std::vector<Check> checks;
  std::vector<TrafficLine> traffic;
};

/// Runs `weights` and compares every result with `unsharded`, which ran the same test case. Collective.
Compared compare(const model::DecoderWeights& weights, const TestCase& test_case, const RunConfig& run_config,
                 const Unsharded& unsharded);

/// Returns the largest difference of each result in `trace`, of an unsharded model, from the reference.
std::map<Label, double> rounding_of(const model::DecoderWeights& weights, const Trace& trace,
                                    const RunConfig& run_config, const Results& reference);

}  // namespace shardwise::doctor
