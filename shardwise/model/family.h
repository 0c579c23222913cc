// What sets one family of models apart: how its config.json is read and written, and what its files call our
// parameters. One family is one file, family_<name>.cpp; family.cpp has the table of them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/model/config.h"

namespace shardwise::base {
class Fields;
}

namespace shardwise::model {

/// How the files keep a module of ours, "*" standing for the layer's number on both sides.
struct StoredModule {
  std::string ours;                 // model.layers.*.self_attn.qkv_proj
  std::vector<std::string> theirs;  // one name, or one for each segment of a fused projection
  bool is_transposed = false;       // its weight lies [in, out], and fused segments beside each other
};

struct Family {
  std::string model_type;    // as config.json says it
  std::string architecture;  // transformers' class
  Config (*read)(const base::Fields& fields) = nullptr;
  /// Adds all but architectures and model_type.
  void (*write)(const Config& config, nlohmann::ordered_json& out) = nullptr;
  /// Fields of Config that its config.json calls otherwise: {ours, theirs}.
  std::vector<std::pair<std::string, std::string>> spellings = {};
  /// A module that is not listed has our name.
  std::vector<StoredModule> modules = {};
  /// Some of its published files leave this out before every name but the head's.
  std::string optional_prefix = {};
  /// Ends of tensors' names that older exporters wrote beside the weights and that carry nothing of their
  /// own.
  std::vector<std::string> redundant = {};
  std::vector<std::pair<std::string, Config>> presets = {};

  /// What its config.json calls a field of Config.
  std::string spelling(const std::string& field) const;
};

/// The table, in the order in which errors list it.
const std::vector<Family>& families();

/// Errors: c10::ValueError beginning with `where` that lists the known ones.
const Family& family_of(const std::string& model_type, const std::string& where = "config");

/// The names under which a family's files keep a parameter of ours: one, or one a segment.
struct StoredNames {
  std::vector<std::string> names;
  bool is_transposed = false;
};
StoredNames stored_names(const Family& family, const std::string& parameter);

// The table's rows, one a file.
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family phi3_family();
Family gpt2_family();

}  // namespace shardwise::model
