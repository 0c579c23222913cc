// Models whose config.json ties the output head to the embedding while their files have a head of its own.
#pragma once
#include <filesystem>
#include <string>

namespace shardwise::checkpoint {

/// Logs one line, beginning with `command`, if the config of a checked `directory` ties the head to the
/// embedding and its lm_head.weight differs from it: the model computes with the embedding.
/// Cost: reads both tensors up to their first difference, if both exist.
void warn_of_unused_head(const std::filesystem::path& directory, const std::string& command);

}  // namespace shardwise::checkpoint
