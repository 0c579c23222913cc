#include "shardwise/cli/bench_shape.h"

#include <c10/util/Exception.h>

#include "shardwise/config/layout.h"

namespace shardwise::cli {

config::Config BenchShape::config(const std::string& command, int64_t tp) const {
  TORCH_CHECK_VALUE(!preset || !model_config, command,
                    ": --preset and --model-config are mutually exclusive; got ", preset.value_or(""),
                    " and ", model_config.value_or(""), " [SW0711]");
  config::Config result =
      model_config ? config::load_config(*model_config) : config::preset(preset.value_or(default_preset));
  TORCH_CHECK_VALUE(!result.quantization, command, ": --model-config must be of an unquantized model; got ",
                    result.quantization ? result.quantization->text() : "", " [SW0710]");
  config::check_ranks(command, result, tp);
  return result;
}

void add_shape_flags(Flags& flags, BenchShape& shape) {
  flags.alternatives({"preset", "model-config"});
  flags.value("--preset NAME", shape.preset, "the shape of the model [" + shape.default_preset + "]");
  flags.value("--model-config FILE", shape.model_config, "the shape of the model, as a config.json");
}

}  // namespace shardwise::cli
