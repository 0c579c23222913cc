// The flags with which a benchmark names the shape of a model, whose weights are random.
#pragma once
#include <optional>
#include <string>

#include "shardwise/cli/flags.h"
#include "shardwise/config/config.h"

namespace shardwise::cli {

/// A preset or a config.json.
struct BenchShape {
  std::string default_preset;
  std::optional<std::string> preset = {}, model_config = {};

  /// Returns what names the shape.
  std::string name() const { return model_config.value_or(preset.value_or(default_preset)); }
  /// Returns the config. Errors: c10::ValueError naming `command`, if both are given, the model is quantized,
  /// or it cannot be split over `tp` ranks; those of reading the file.
  config::Config config(const std::string& command, int64_t tp) const;
};

void add_shape_flags(Flags& flags, BenchShape& shape);

}  // namespace shardwise::cli
