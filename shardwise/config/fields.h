// Readers and writers of config.json fields that several families share. Only sources of this room include
// this.
//
// A reader overwrites the family's defaults in a config. It checks types and names; validate checks ranges.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "shardwise/base/json.h"
#include "shardwise/config/config.h"

namespace shardwise::config {

using OrderedJson = nlohmann::ordered_json;

/// Reads the fields that Llama and related families share: sizes, RMSNorm, silu, RoPE, dtype and tokens.
/// num_key_value_heads defaults to num_attention_heads if it is 0, and head_dim to hidden_size /
/// num_attention_heads.
void read_llama_fields(const base::Fields& fields, Config& config);
void write_llama_fields(const Config& config, OrderedJson& out);

/// Reads rope_theta and rope_scaling (transformers 4) and rope_parameters (5), which must be consistent.
void read_rope(const base::Fields& fields, Config& config);
/// Writes the fields of transformers 4 and of 5.
void write_rope(const Config& config, OrderedJson& out);
/// Checks that RoPE rotates every element of a head. Errors: c10::ValueError otherwise.
void check_full_rotation(const base::Fields& fields, const Config& config);

/// Reads torch_dtype (transformers 4) and dtype (5).
void read_dtype(const base::Fields& fields, Config& config);
void write_dtype(const Config& config, OrderedJson& out);

/// Reads bos_token_id and eos_token_id. A missing field keeps the family's default; null means no token.
void read_tokens(const base::Fields& fields, Config& config);
void write_tokens(const Config& config, OrderedJson& out);

/// Returns hidden_size / num_attention_heads. Errors: c10::ValueError unless that is an integer.
int64_t head_dim_of(const base::Fields& fields, const Config& config);

/// Reads sliding_window for all layers. A missing field keeps the family's default; null means no window.
void read_window(const base::Fields& fields, Config& config);
void write_window(const Config& config, OrderedJson& out);

/// Reads Qwen's window: sliding_window applies only with use_sliding_window, to the layers in layer_types
/// (transformers 5) or from max_window_layers on (4).
void read_layered_window(const base::Fields& fields, Config& config);
void write_layered_window(const Config& config, OrderedJson& out);

/// Reads the quantization_config of a config.json, if any. Errors: c10::ValueError naming an unsupported
/// field.
std::optional<Quantization> read_quantization(const base::Fields& fields);
/// Adds a quantization_config for packed files to `out`.
void write_quantization(const Quantization& quantization, OrderedJson& out);

}  // namespace shardwise::config
