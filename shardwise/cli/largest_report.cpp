#include "shardwise/cli/largest_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;
using plan::LargestInference;
using plan::LargestTraining;

std::string gigabytes_of(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e9);
}

bool has_sequence_parallel(const LargestTraining& one) {
  return one.plan.degrees.tp > 1 && one.plan.degrees.has_sequence_parallel;
}

/// What one that does not fit needs.
std::string too_much(int64_t bytes) {
  return fmt::format("none: one needs {} GB", gigabytes_of(bytes));
}

double tokens_per_second(const LargestInference& one) {
  return static_cast<double>(one.texts) / one.plan.token.total();
}

const char* name_of(plan::Grown grown) {
  return grown == plan::Grown::sequence ? "sequence_length" : "micro_batch_size";
}

}  // namespace

std::string to_text(const std::vector<LargestTraining>& all, plan::Grown grown) {
  std::vector<Row> rows{
      {"tp", "dp", "sp",
       grown == plan::Grown::sequence ? "tokens of a sequence" : "sequences of a micro-batch", "GB", "states",
       "step ms", "tokens/s"}};
  for (const LargestTraining& one : all) {
    const plan::MemoryByClass& memory = one.plan.memory;
    Row row{fmt::to_string(one.plan.degrees.tp), fmt::to_string(one.plan.degrees.dp),
            has_sequence_parallel(one) ? "yes" : "no"};
    if (one.size == 0) {
      row.insert(row.end(), {too_much(memory.total()), "", "", "", ""});
    } else {
      row.insert(row.end(), {fmt::to_string(one.size), gigabytes_of(memory.total()),
                             gigabytes_of(memory.weights + memory.gradients + memory.optimizer),
                             fmt::format("{:.1f}", one.plan.time.total() * 1e3),
                             fmt::format("{:.0f}", one.tokens_per_second)});
    }
    rows.push_back(row);
  }
  return table(rows);
}

std::string to_text(const std::vector<LargestInference>& all, int64_t tokens_per_text) {
  std::vector<Row> rows{
      {"tp", "replicas", "texts", "cached tokens", "GB", "weights", "caches", "token ms", "tokens/s"}};
  for (const LargestInference& one : all) {
    Row row{fmt::to_string(one.plan.degrees.tp), fmt::to_string(one.plan.degrees.replicas)};
    if (one.texts == 0) {
      row.insert(row.end(), {too_much(one.plan.memory.total()), "", "", "", "", "", ""});
    } else {
      row.insert(row.end(),
                 {fmt::to_string(one.texts), fmt::to_string(one.texts * tokens_per_text),
                  gigabytes_of(one.plan.memory.total()), gigabytes_of(one.plan.memory.weights),
                  gigabytes_of(one.plan.memory.cache), fmt::format("{:.2f}", one.plan.token.total() * 1e3),
                  fmt::format("{:.0f}", tokens_per_second(one))});
    }
    rows.push_back(row);
  }
  return table(rows);
}

std::string to_json(const std::vector<LargestTraining>& all, plan::Grown grown) {
  ordered_json list = ordered_json::array();
  for (const LargestTraining& one : all)
    list.push_back({{"tp", one.plan.degrees.tp},
                    {"dp", one.plan.degrees.dp},
                    {"sequence_parallel", has_sequence_parallel(one)},
                    {"size", one.size},
                    {"memory_bytes", one.plan.memory.total()},
                    {"seconds", one.plan.time.total()},
                    {"tokens_per_second", one.tokens_per_second}});
  return json_line({{"largest", name_of(grown)}, {"plans", list}});
}

std::string to_json(const std::vector<LargestInference>& all, int64_t tokens_per_text) {
  ordered_json list = ordered_json::array();
  for (const LargestInference& one : all)
    list.push_back({{"tp", one.plan.degrees.tp},
                    {"replicas", one.plan.degrees.replicas},
                    {"size", one.texts},
                    {"cached_tokens", one.texts * tokens_per_text},
                    {"memory_bytes", one.plan.memory.total()},
                    {"token_seconds", one.plan.token.total()},
                    {"tokens_per_second", tokens_per_second(one)}});
  return json_line({{"largest", "texts"}, {"plans", list}});
}

}  // namespace shardwise::cli
