// The results of a benchmark of collectives as one JSON document, with the same fields for every candidate
// (benchmarks/comm_peer.py writes those of other libraries).
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardwise/cli/bench_timing.h"

namespace shardwise::cli {

/// The calls at one size and cache state.
struct CommPoint {
  int64_t bytes;
  CacheState state;
  std::vector<Measured> measured;
};

struct CommDocument {
  std::string candidate, version, method;  // method: the function called, and its caller
  int64_t tp;
  std::string dtype;
  std::vector<CommPoint> points;
};

/// Returns "warm" or "rewritten".
std::string name_of(CacheState state);
nlohmann::ordered_json to_json(const Spread& spread);
/// Returns the document, with one point for every call of every size and cache state.
nlohmann::ordered_json to_json(const CommDocument& document);

}  // namespace shardwise::cli
