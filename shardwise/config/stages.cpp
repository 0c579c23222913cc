#include "shardwise/config/stages.h"

#include <c10/util/Exception.h>

#include <numeric>

namespace shardwise::config {
namespace {

/// Returns "2 x 3", or "2" if each stage has one part.
std::string text_of(const Stages& stages) {
  const std::string pp = std::to_string(stages.pp);
  return stages.virtual_stages > 1 ? pp + " x " + std::to_string(stages.virtual_stages) : pp;
}

}  // namespace

void check_stages(const std::string& command, const Stages& stages, int64_t layers) {
  const std::string flags = stages.virtual_stages > 1 ? "--pp x --virtual-stages" : "--pp";
  TORCH_CHECK_VALUE(stages.layers.empty() || std::ssize(stages.layers) == stages.pp * stages.virtual_stages,
                    command, ": --pp-layers must be as many numbers as ", flags, ", ", text_of(stages),
                    "; got ", stages.layers.size(), " [SW0876]");
  TORCH_CHECK_VALUE(stages.pp <= layers / stages.virtual_stages, command, ": ", flags,
                    " must be at most the number of layers, ", layers, "; got ", text_of(stages),
                    " [SW0875]");
  const int64_t sum = std::accumulate(stages.layers.begin(), stages.layers.end(), int64_t{0});
  TORCH_CHECK_VALUE(stages.layers.empty() || sum == layers, command,
                    ": --pp-layers must add up to the number of layers, ", layers, "; got ", sum,
                    " [SW0873]");
}

std::vector<base::Range> layers_of(const Stages& stages, int64_t layers, int stage) {
  const base::Split parts =
      stages.layers.empty()
          ? base::Split::even("layer", layers, static_cast<int>(stages.pp * stages.virtual_stages))
          : base::Split::of_sizes("layer", stages.layers);
  std::vector<base::Range> runs;
  for (int part = stage; part < parts.ranks(); part += static_cast<int>(stages.pp))
    runs.push_back(parts.range(part));
  return runs;
}

}  // namespace shardwise::config
