#include "shardwise/cli/bench_document.h"

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"

namespace shardwise::cli {
namespace {

nlohmann::ordered_json to_json(const CommPoint& point, const Measured& m) {
  return {{"bytes", point.bytes},
          {"mode", name_of(point.state)},
          {"call", m.name},
          {"repetitions", m.repetitions},
          {"calls_per_repetition", m.calls_per_repetition},
          {"raw", to_json(m.raw)},
          {"net", to_json(m.net)}};
}

}  // namespace

std::string name_of(CacheState state) {
  return state == CacheState::warm ? "warm" : "rewritten";
}

nlohmann::ordered_json to_json(const Spread& s) {
  return {{"median_us", s.median_us},
          {"best_us", s.best_us},
          {"lower_quartile_us", s.lower_quartile_us},
          {"upper_quartile_us", s.upper_quartile_us}};
}

nlohmann::ordered_json to_json(const CommDocument& document) {
  nlohmann::ordered_json json{{"candidate", document.candidate},
                              {"version", document.version},
                              {"method", document.method},
                              {"cpu", base::cpu_name()},
                              {"tp", document.tp},
                              {"dtype", document.dtype},
                              {"points", nlohmann::ordered_json::array()}};
  for (const CommPoint& point : document.points) {
    for (const Measured& measured : point.measured) json["points"].push_back(to_json(point, measured));
  }
  return json;
}

}  // namespace shardwise::cli
