#include "shardwise/cli/shapes_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;
using plan::BlockCollective;
using plan::ShardedTensor;

constexpr int64_t kShownRanks = 4;

/// Returns what the indices of the sharded dim are.
const char* indices_of(const ShardedTensor& tensor) {
  if (tensor.ranges.empty()) return "all";
  if (!tensor.is_weight) return tensor.dim == 0 ? "tokens" : "features";
  return tensor.dim == 0 ? "rows" : "columns";
}

std::string text_of(const std::vector<base::Range>& ranges) {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : ranges) parts.push_back(fmt::format("{}:{}", begin, end));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Returns the ranks to show: all, or the first ones and the last.
std::vector<int64_t> shown_ranks(int64_t tp) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < tp; ++rank)
    if (tp <= kShownRanks || rank < kShownRanks - 1 || rank == tp - 1) ranks.push_back(rank);
  return ranks;
}

Row heading(std::vector<std::string> columns, const std::vector<int64_t>& ranks) {
  for (const int64_t rank : ranks) columns.push_back(fmt::format("rank {}", rank));
  return columns;
}

std::string tensors_table(const std::vector<ShardedTensor>& tensors, const std::vector<int64_t>& ranks) {
  std::vector<Row> rows{heading({"tensor", "shape", "indices"}, ranks)};
  for (const ShardedTensor& tensor : tensors) {
    Row row{tensor.name, fmt::format("{}", fmt::join(tensor.shape, " x ")), indices_of(tensor)};
    for (const int64_t rank : ranks)
      row.push_back(tensor.ranges.empty() ? "all" : text_of(tensor.ranges.at(size_t(rank))));
    rows.push_back(row);
  }
  return table(rows);
}

const char* mode_of(const BlockCollective& collective) {
  return collective.parallelism == plan::Parallelism::tp ? "TP" : "TP+SP";
}

const char* phase_of(const BlockCollective& collective) {
  return collective.is_backward ? "backward" : "forward";
}

std::string collectives_table(const std::vector<BlockCollective>& collectives,
                              const std::vector<int64_t>& ranks) {
  std::vector<Row> rows{heading({"bytes a block sends", "phase", "collective", "calls"}, ranks)};
  for (const BlockCollective& c : collectives) {
    Row row{mode_of(c), phase_of(c), c.name, fmt::to_string(c.calls)};
    for (const int64_t rank : ranks) row.push_back(fmt::to_string(c.bytes.at(size_t(rank))));
    rows.push_back(row);
  }
  return table(rows);
}

ordered_json to_json(const ShardedTensor& tensor) {
  ordered_json ranges = ordered_json::array();
  for (const auto& of_rank : tensor.ranges) {
    ranges.push_back(ordered_json::array());
    for (const auto& [begin, end] : of_rank) ranges.back().push_back({begin, end});
  }
  return {{"tensor", tensor.name},
          {"shape", tensor.shape},
          {"is_weight", tensor.is_weight},
          {"dim", tensor.ranges.empty() ? ordered_json() : ordered_json(tensor.dim)},
          {"ranges", ranges}};
}

ordered_json to_json(const BlockCollective& collective) {
  return {{"sequence_parallel", collective.parallelism == plan::Parallelism::tp_sp},
          {"phase", phase_of(collective)},
          {"collective", collective.name},
          {"calls", collective.calls},
          {"bytes", collective.bytes}};
}

}  // namespace

std::string to_text(const ShapesReport& report) {
  const std::vector<int64_t> ranks = shown_ranks(report.tp);
  const std::string tensors = tensors_table(report.tensors, ranks);
  return report.collectives.empty() ? tensors : tensors + "\n" + collectives_table(report.collectives, ranks);
}

std::string to_json(const ShapesReport& report) {
  ordered_json tensors = ordered_json::array(), collectives = ordered_json::array();
  for (const ShardedTensor& tensor : report.tensors) tensors.push_back(to_json(tensor));
  for (const BlockCollective& collective : report.collectives) collectives.push_back(to_json(collective));
  return json_line({{"tp", report.tp}, {"tensors", tensors}, {"block_collectives", collectives}});
}

}  // namespace shardwise::cli
