// What a bench of collectives has found, as one JSON document that is the same for every contender
// (benchmarks/comm_peer.py writes the others').
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardwise/cli/bench_rounds.h"

namespace shardwise::cli {

/// Calls of one size, used in one way.
struct CommPoint {
  int64_t bytes;
  BufferUse use;
  std::vector<Measured> measured;
};

struct CommDocument {
  std::string contender, version, how;  // how: what is called, by what
  int64_t tp;
  std::string dtype;
  std::vector<CommPoint> points;
};

/// "warm" or "rewritten".
std::string name_of(BufferUse use);
nlohmann::ordered_json to_json(const Spread& spread);
/// One point for every call of every size and use.
nlohmann::ordered_json to_json(const CommDocument& document);

}  // namespace shardwise::cli
