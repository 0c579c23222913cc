#include "shardwise/cli/stages_table.h"

#include <fmt/format.h>

namespace shardwise::cli {

std::string numbers_text(const base::Range& numbers) {
  if (numbers.size() == 0) return "none";
  if (numbers.size() == 1) return fmt::format("{}", numbers.begin);
  return fmt::format("{} to {}", numbers.begin, numbers.end - 1);
}

std::string stages_table(const std::string& command, const config::Stages& stages, int64_t layers,
                         int64_t ranks_of_a_stage) {
  const std::string head = command + ": stage";
  std::string table = head + "  ranks      layers";
  for (int stage = 0; stage < stages.pp; ++stage) {
    std::string runs;
    for (const base::Range& run : config::layers_of(stages, layers, stage))
      runs += (runs.empty() ? "" : ", ") + numbers_text(run);
    const base::Range ranks{stage * ranks_of_a_stage, (stage + 1) * ranks_of_a_stage};
    table += fmt::format("\n{:>{}}  {:<9}  {}{}{}", stage, head.size(), numbers_text(ranks),
                         stage == 0 ? "embedding, " : "", runs,
                         stage + 1 == stages.pp ? ", last norm and head" : "");
  }
  return table;
}

}  // namespace shardwise::cli
