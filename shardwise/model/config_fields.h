// The parts of config.json that families share. For the sources family_<name>.cpp only.
//
// Reading completes a config that holds the family's defaults; types and spellings are checked here, ranges
// in validate.
#pragma once
#include <nlohmann/json.hpp>

#include "shardwise/base/json.h"
#include "shardwise/model/config.h"

namespace shardwise::model {

using Written = nlohmann::ordered_json;

/// All that the files of Llama and its relatives have in common: sizes, RMSNorm, silu, rotary positions,
/// dtype and tokens. A num_key_value_heads of 0 stands for as many as query heads, a head_dim of 0 for
/// hidden_size / num_attention_heads.
void read_llama_fields(const base::Fields& fields, Config& config);
void write_llama_fields(const Config& config, Written& out);

/// rope_theta, rope_scaling (older) and rope_parameters (newer), which must not disagree.
void read_rope(const base::Fields& fields, Config& config);
/// Both spellings: transformers before 5 reads the first, 5 the second.
void write_rope(const Config& config, Written& out);
/// Errors: c10::ValueError unless every element of a head is turned, as most families' models do.
void check_all_turned(const base::Fields& fields, const Config& config);

/// torch_dtype (older) and dtype (newer).
void read_dtype(const base::Fields& fields, Config& config);
void write_dtype(const Config& config, Written& out);

/// bos_token_id and eos_token_id: left out, the family's default; null, none.
void read_tokens(const base::Fields& fields, Config& config);
void write_tokens(const Config& config, Written& out);

/// hidden_size / num_attention_heads. Errors: c10::ValueError unless that is whole.
int64_t head_dim_of(const base::Fields& fields, const Config& config);

/// sliding_window for every layer: left out, the family's default; null, none.
void read_window(const base::Fields& fields, Config& config);
void write_window(const Config& config, Written& out);

/// Qwen's window: sliding_window counts only with use_sliding_window, and in the layers that layer_types
/// names (newer) or from max_window_layers on (older).
void read_layered_window(const base::Fields& fields, Config& config);
void write_layered_window(const Config& config, Written& out);

}  // namespace shardwise::model
