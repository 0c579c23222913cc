// The families of models: how to read and write a family's config.json, and the names of our parameters in
// its files. Each family has a file family_<name>.cpp; family.cpp has the table of all families.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::base {
class Fields;
}

namespace shardwise::config {

/// The names of one of our modules in the files; "*" is the layer's number in all names.
struct StoredModule {
  std::string name;                       // model.layers.*.self_attn.qkv_proj
  std::vector<std::string> stored_names;  // one name, or one for each segment of a fused projection
  bool is_transposed = false;             // the weight is stored as [in, out], fused segments along dim 1
};

/// A family of models.
struct Family {
  std::string model_type;    // in config.json
  std::string architecture;  // the class in transformers
  Config (*read)(const base::Fields& fields) = nullptr;
  /// Writes all fields except architectures and model_type.
  void (*write)(const Config& config, nlohmann::ordered_json& out) = nullptr;
  /// Fields of Config that have another name in the family's config.json: {Config's name, config.json's
  /// name}.
  std::vector<std::pair<std::string, std::string>> field_names = {};
  /// Modules with other names in the files; a module that is not listed has our name.
  std::vector<StoredModule> modules = {};
  /// A prefix of all names but the lm_head's that some published files omit.
  std::string optional_prefix = {};
  /// Suffixes of redundant tensors that older exporters wrote.
  std::vector<std::string> redundant_suffixes = {};
  std::vector<std::pair<std::string, Config>> presets = {};

  /// Returns the name in config.json of a field of Config.
  std::string field_name(const std::string& field) const;
};

/// Returns the families that this library runs, in the order in which errors list them.
const std::vector<Family>& families();
/// Returns the families that can only be planned. They have no `write` and no modules.
const std::vector<Family>& planned_families();
/// Returns families() and planned_families().
std::vector<Family> all_families();

/// Returns the family of a model_type, of both kinds. Errors: c10::ValueError beginning with `where` that
/// lists the known ones.
const Family& family_of(const std::string& model_type, const std::string& where = "config");

/// The names of one of our parameters in a family's files: one, or one per segment.
struct StoredNames {
  std::vector<std::string> names;
  bool is_transposed = false;
};
StoredNames stored_names(const Family& family, const std::string& parameter);

// The families, one per file.
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family phi3_family();
Family gpt2_family();
Family mixtral_family();
Family qwen3_moe_family();
Family deepseek_v3_family();

}  // namespace shardwise::config
