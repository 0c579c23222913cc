// The shard of every parameter on each of t ranks, from the config alone, without a group or memory.
//
// The rules are the same as those of the layers in model/decoder; tests/model/sharding_test compares the two.
#pragma once
#include <string>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/model/names.h"

namespace shardwise::model {

/// Returns every parameter of DecoderWeights on `tp` ranks once, in its order, without values.
/// Errors: those of make_layout.
std::vector<parallel::Parameter> sharded_parameters(const Config& config, int tp);

/// Returns the tensors that store these parameters in files of the config's family. Errors: those of
/// make_layout.
std::vector<StoredTensor> stored_tensors(const Config& config, int tp);

/// Returns a description for output and the shard index: "heads | kv_heads | kv_heads, dim 0", or "whole on
/// every rank".
std::string rule_text(const StoredTensor& stored);

}  // namespace shardwise::model
