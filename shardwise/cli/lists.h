// Flags whose value is a list separated by commas.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::cli {

/// Returns the parts of `text` between commas, at least one: "a,,b" has three.
std::vector<std::string> parts_of(std::string_view text);

/// Returns a list of integers. Errors: c10::ValueError naming `command`, `flag` and the rule unless each is
/// from `min` to `max`.
std::vector<int64_t> integers_of(const std::string& command, const std::string& flag, std::string_view text,
                                 int64_t min, int64_t max);

/// Returns the numbers of layers in the value of --pp-layers. Errors: those of integers_of.
std::vector<int64_t> pp_layers_of(const std::string& command, std::string_view text);

}  // namespace shardwise::cli
