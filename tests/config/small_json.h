// A small model's config.json for tests of its parser.
#pragma once
#include <nlohmann/json.hpp>

#include "shardwise/config/config.h"
#include "tests/support/error_text.h"

namespace shardwise::config {

using nlohmann::json;

/// Returns a small config.json with the required fields and `changes`; null removes a field.
inline json small(const json& changes = json::object()) {
  json fields = {{"model_type", "llama"},  {"vocab_size", 100},
                 {"hidden_size", 48},      {"intermediate_size", 101},
                 {"num_hidden_layers", 2}, {"num_attention_heads", 6},
                 {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 64}};
  for (const auto& [name, value] : changes.items()) {
    if (value.is_null()) {
      fields.erase(name);
    } else {
      fields[name] = value;
    }
  }
  return fields;
}

inline Config parse(const json& fields) {
  return parse_config(fields.dump(), "c");
}

inline std::string parse_error(const json& changes) {
  return test::error_text([&] { parse(small(changes)); });
}

}  // namespace shardwise::config
