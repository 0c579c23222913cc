#include "shardwise/cli/shapes_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

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

}  // namespace

std::string to_text(const std::vector<ShardedTensor>& tensors, int64_t tp) {
  const std::vector<int64_t> ranks = shown_ranks(tp);
  std::vector<Row> rows{{"tensor", "shape", "indices"}};
  for (const int64_t rank : ranks) rows[0].push_back(fmt::format("rank {}", rank));
  for (const ShardedTensor& tensor : tensors) {
    Row row{tensor.name, fmt::format("{}", fmt::join(tensor.shape, " x ")), indices_of(tensor)};
    for (const int64_t rank : ranks)
      row.push_back(tensor.ranges.empty() ? "all" : text_of(tensor.ranges.at(size_t(rank))));
    rows.push_back(row);
  }
  return table(rows);
}

std::string to_json(const std::vector<ShardedTensor>& tensors, int64_t tp) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ShardedTensor& tensor : tensors) {
    nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
    for (const auto& of_rank : tensor.ranges) {
      ranges.push_back(nlohmann::ordered_json::array());
      for (const auto& [begin, end] : of_rank) ranges.back().push_back({begin, end});
    }
    list.push_back(
        {{"tensor", tensor.name},
         {"shape", tensor.shape},
         {"is_weight", tensor.is_weight},
         {"dim", tensor.ranges.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(tensor.dim)},
         {"ranges", ranges}});
  }
  return json_line({{"tp", tp}, {"tensors", list}});
}

}  // namespace shardwise::cli
