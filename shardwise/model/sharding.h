// Which slice of every parameter each of t ranks holds, from the config alone: no group, no memory.
//
// The rules are those that model/decoder gives its layers; tests/model/sharding_test compares the two.
#pragma once
#include <string>
#include <vector>

#include "shardwise/model/config.h"
#include "shardwise/model/names.h"

namespace shardwise::model {

/// Every parameter once, as DecoderWeights has it on `tp` ranks and in its order, without a value.
/// Errors: those of make_layout.
std::vector<parallel::Parameter> sharded_parameters(const Config& config, int tp);

/// The same as the files of the config's family keep them. Errors: those of make_layout.
std::vector<StoredTensor> stored_tensors(const Config& config, int tp);

/// For people: "heads | kv_heads | kv_heads, dim 0", or "whole on every rank".
std::string rule_text(const StoredTensor& stored);

}  // namespace shardwise::model
