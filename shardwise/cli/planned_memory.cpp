#include "shardwise/cli/planned_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

/// Returns "rank 2" or "ranks 2 to 5".
std::string rank_range(int64_t first, int64_t last) {
  return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
}

std::string in_both_pools(const PlannedMemory& memory) {
  return fmt::format("{} ({:.2f} private, {:.2f} shared)", in_megabytes(memory.bytes()),
                     megabytes(memory.private_bytes), megabytes(memory.symmetric_heap_bytes));
}

}  // namespace

std::string to_text(const PlannedMemories& by_rank) {
  const std::string head = "planned peak memory: ";
  if (by_rank.size() == 1) return head + in_megabytes(by_rank[0].bytes());
  std::string text;
  for (auto first = by_rank.begin(); first != by_rank.end();) {
    const auto end = std::find_if(first, by_rank.end(), [&](const auto& other) { return other != *first; });
    text += (text.empty() ? "" : "; ") + rank_range(first - by_rank.begin(), end - by_rank.begin() - 1) +
            ": " + in_both_pools(*first);
    first = end;
  }
  return head + text;
}

void throw_with_plan(const std::string& command, const c10::OutOfMemoryError& error,
                     const PlannedMemories& planned) {
  const std::string plan = planned.empty() ? "peak memory was not planned" : to_text(planned);
  TORCH_CHECK(false, command,
              ": the device's memory must hold the run; got: ", base::without_code(base::one_line(error)),
              "; ", plan, "; use a smaller batch, or more ranks [SW0849]");
}

nlohmann::ordered_json to_json(const PlannedMemories& by_rank) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const PlannedMemory& memory = by_rank[rank];
    list.push_back({{"rank", rank},
                    {"private_bytes", memory.private_bytes},
                    {"symmetric_heap_bytes", memory.symmetric_heap_bytes},
                    {"bytes", memory.bytes()}});
  }
  return list;
}

}  // namespace shardwise::cli
