// config.json <-> Config: the part that is common to all families.
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/config/family.h"
#include "shardwise/config/fields.h"

namespace shardwise::config {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

/// A config.json and what names it in errors.
struct ConfigText {
  std::string text, where;
};

ConfigText read_config(const std::string& path) {
  const std::string file = base::is_directory(path) ? path + "/config.json" : path;
  return {base::read_text(file, kMaxConfigBytes), file};
}

Config parse_config_to_plan(const std::string& json_text, const std::string& where) {
  const nlohmann::json parsed = base::parse_json(json_text, where);
  const base::Fields fields(parsed, where + ": ");
  const Family& family = family_of(fields.text("model_type"), where);
  Config config = family.read(fields);
  config.quantization = read_quantization(fields);
  validate(config, where);
  return config;
}

void check_runs(const Config& config, const std::string& where) {
  TORCH_CHECK_VALUE(!can_only_be_planned(config), where, ": model_type ", config.model_type,
                    " can only be planned (shardwise plan), not run [SW0807]");
}

}  // namespace

Config parse_config(const std::string& json_text, const std::string& where) {
  Config config = parse_config_to_plan(json_text, where);
  check_runs(config, where);
  return config;
}

Config load_config(const std::string& path) {
  const auto [text, where] = read_config(path);
  return parse_config(text, where);
}

Config load_config_to_plan(const std::string& path) {
  const auto [text, where] = read_config(path);
  return parse_config_to_plan(text, where);
}

std::string with_quantization(const std::string& json_text, const Quantization& quantization) {
  OrderedJson out = OrderedJson::parse(json_text);
  write_quantization(quantization, out);
  return out.dump(/*indent=*/2) + "\n";
}

std::string to_json(const Config& config) {
  check_runs(config, "config");
  const Family& family = family_of(config.model_type);
  OrderedJson out;
  out["architectures"] = {family.architecture};
  out["model_type"] = family.model_type;
  family.write(config, out);
  if (config.quantization) write_quantization(*config.quantization, out);
  const std::string text = out.dump(/*indent=*/2) + "\n";
  TORCH_CHECK_VALUE(parse_config(text, "config") == config,
                    "config: must be expressible in a config.json of model_type ", config.model_type,
                    "; got fields that differ when read back, such as a bias or a sliding window that the "
                    "family does not have [SW0197]");
  return text;
}

}  // namespace shardwise::config
