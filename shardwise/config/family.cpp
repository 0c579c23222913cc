#include "shardwise/config/family.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

constexpr const char* kLayers = "model.layers.";

/// `model.layers.12.mlp.down_proj.weight` → `model.layers.*.mlp.down_proj`, `12`, `.weight`.
struct Parts {
  std::string module, layer, leaf;
};

Parts parts_of(const std::string& parameter) {
  const size_t leaf = parameter.rfind('.');
  TORCH_INTERNAL_ASSERT(leaf != std::string::npos, parameter, " is not a parameter name");
  Parts parts{parameter.substr(0, leaf), "", parameter.substr(leaf)};
  if (parts.module.rfind(kLayers, 0) != 0) return parts;
  const size_t begin = std::string(kLayers).size(), end = parts.module.find('.', begin);
  parts.layer = parts.module.substr(begin, end - begin);
  parts.module.replace(begin, end - begin, "*");
  return parts;
}

std::string with_layer(std::string name, const std::string& layer) {
  const size_t star = name.find('*');
  return star == std::string::npos ? name : name.replace(star, 1, layer);
}

}  // namespace

std::string Family::field_name(const std::string& field) const {
  for (const auto& [name, stored_name] : field_names) {
    if (name == field) return stored_name;
  }
  return field;
}

const std::vector<Family>& families() {
  static const std::vector<Family> table = {llama_family(), mistral_family(), qwen2_family(),
                                            qwen3_family(), phi3_family(),    gpt2_family()};
  return table;
}

const std::vector<Family>& planned_families() {
  static const std::vector<Family> table = {mixtral_family(), qwen3_moe_family(), deepseek_v3_family()};
  return table;
}

std::vector<Family> all_families() {
  std::vector<Family> all = families();
  all.insert(all.end(), planned_families().begin(), planned_families().end());
  return all;
}

const Family& family_of(const std::string& model_type, const std::string& where) {
  std::vector<std::string> known;
  for (const std::vector<Family>* kind : {&families(), &planned_families()}) {
    for (const Family& family : *kind) {
      if (family.model_type == model_type) return family;
      known.push_back(family.model_type);
    }
  }
  C10_THROW_ERROR(ValueError, fmt::format("{}: model_type must be one of {}; got {} [SW0178]", where,
                                          fmt::join(known, ", "), model_type));
}

StoredNames stored_names(const Family& family, const std::string& parameter) {
  const auto [module, layer, leaf] = parts_of(parameter);
  for (const auto& [module_name, names, is_transposed] : family.modules) {
    if (module_name != module) continue;
    StoredNames stored{{}, is_transposed && leaf == ".weight"};
    for (const std::string& name : names) stored.names.push_back(with_layer(name, layer) + leaf);
    return stored;
  }
  return {{parameter}};
}

}  // namespace shardwise::config
