// The commands of `shardwise profile`: experiments on this machine, or by model on one that is described.
#pragma once
#include "shardwise/cli/commands.h"

namespace shardwise::cli {

/// Times matrix products over size and over rows, next to the processor's limits; see commands.h.
int profile_products_command(const Call& call);
/// Times an MLP, its computation alone and its collectives alone; see commands.h.
int profile_mlp_command(const Call& call);
/// Times a decoder block in the same way; see commands.h.
int profile_block_command(const Call& call);
/// Splits the time of a training step into its parts; see commands.h.
int profile_step_command(const Call& call);

/// What --json and tables say of figures that are computed.
inline constexpr const char* kByModel = "by model, not measured";

}  // namespace shardwise::cli
