// The sliding window in config.json: for all layers, or Qwen's, for some layers.
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/config/fields.h"

namespace shardwise::config {

using base::Fields, base::shown;
using nlohmann::json;

namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

bool read_layer_type(const Fields& fields, const json& type) {
  TORCH_CHECK_VALUE(type == kFull || type == kSliding, fields.label("layer_types"), " must contain ", kFull,
                    " and ", kSliding, " only; got ", shown(type), " [SW0190]");
  return type == kSliding;
}

std::vector<bool> read_layer_types(const Fields& fields, const json& types, int64_t layers) {
  TORCH_CHECK_VALUE(types.is_array() && static_cast<int64_t>(types.size()) == layers,
                    fields.label("layer_types"), " must be a list of num_hidden_layers, ", layers,
                    ", types; got ", shown(types), " [SW0191]");
  std::vector<bool> sliding_layers;
  for (const json& type : types) sliding_layers.push_back(read_layer_type(fields, type));
  return sliding_layers;
}

/// Returns full attention for the first `max_window_layers` layers and a sliding window for the others.
std::vector<bool> from_first(int64_t max_window_layers, int64_t layers) {
  std::vector<bool> sliding_layers;
  // `validate` rejects more layers than kMaxLayers.
  for (int64_t layer = 0; layer < std::min(layers, kMaxLayers); ++layer) {
    sliding_layers.push_back(layer >= max_window_layers);
  }
  return sliding_layers;
}

bool any(const std::vector<bool>& sliding_layers) {
  return std::count(sliding_layers.begin(), sliding_layers.end(), true) > 0;
}

/// Sets the canonical form: no window if no layer has it, no list if all layers have it.
void set_layers(Config& config, std::vector<bool> sliding_layers) {
  if (!any(sliding_layers)) config.sliding_window.reset();
  const bool all = std::count(sliding_layers.begin(), sliding_layers.end(), false) == 0;
  config.sliding_layers = any(sliding_layers) && !all ? std::move(sliding_layers) : std::vector<bool>();
}

}  // namespace

void read_window(const Fields& fields, Config& config) {
  if (fields.is_null("sliding_window")) config.sliding_window.reset();
  if (fields.find("sliding_window")) config.sliding_window = fields.integer("sliding_window");
}

void write_window(const Config& config, OrderedJson& out) {
  out["sliding_window"] = config.sliding_window ? OrderedJson(*config.sliding_window) : OrderedJson(nullptr);
}

void read_layered_window(const Fields& fields, Config& config) {
  int64_t max_window_layers = 28;
  bool is_used = false;
  fields.or_flag("use_sliding_window", is_used);
  fields.or_integer("max_window_layers", max_window_layers);
  config.sliding_window = 4096;
  read_window(fields, config);
  const bool has_window = is_used && config.sliding_window;
  if (!has_window) config.sliding_window.reset();
  const json* types = fields.find("layer_types");
  std::vector<bool> sliding_layers = types ? read_layer_types(fields, *types, config.num_hidden_layers)
                                           : from_first(max_window_layers, config.num_hidden_layers);
  TORCH_CHECK_VALUE(has_window || !types || !any(sliding_layers), fields.label("layer_types"), " must be ",
                    kFull, " for all layers without use_sliding_window and a sliding_window; got ",
                    shown(*types), " [SW0192]");
  set_layers(config, has_window ? std::move(sliding_layers) : std::vector<bool>());
}

void write_layered_window(const Config& config, OrderedJson& out) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    types.push_back(config.window_of(layer) ? kSliding : kFull);
  }
  out["use_sliding_window"] = config.sliding_window.has_value();
  write_window(config, out);
  // For transformers 4, which cannot express full attention in a layer after one with a window.
  out["max_window_layers"] = std::find(types.begin(), types.end(), kSliding) - types.begin();
  out["layer_types"] = types;
}

}  // namespace shardwise::config
