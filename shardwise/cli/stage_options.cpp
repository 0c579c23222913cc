#include "shardwise/cli/stage_options.h"

#include <c10/util/Exception.h>

#include <limits>

#include "shardwise/cli/lists.h"

namespace shardwise::cli {

int64_t ranks_of(const StageOptions& options, int64_t tp) {
  int64_t ranks = 0;
  return __builtin_mul_overflow(options.pp, tp, &ranks) ? std::numeric_limits<int64_t>::max() : ranks;
}

void add_stage_flags(Flags& flags, StageOptions& o, const std::string& at_once) {
  flags.value(
      "--pp,--pipeline-model-parallel-size,--pipeline-parallel-size N", o.pp,
      "pipeline stages of --tp ranks each, with an equal share of the layers; while one processes some " +
          at_once + ", the next processes others [1]");
  flags.value("--pp-layers N,...", o.layers, "the number of layers of each stage [as even as possible]");
}

config::Stages stages_of(const std::string& command, const StageOptions& o, int64_t layers) {
  TORCH_CHECK_VALUE(o.pp >= 1, command, ": --pp must be at least 1; got ", o.pp, " [SW0880]");
  config::Stages stages{.pp = o.pp};
  if (o.layers) stages.layers = pp_layers_of(command, *o.layers);
  config::check_stages(command, stages, layers);
  return stages;
}

}  // namespace shardwise::cli
