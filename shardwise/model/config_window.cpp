// The sliding windows of config.json: one for all layers, or Qwen's, which some layers have.
#include <c10/util/Exception.h>

#include <algorithm>

#include "shardwise/model/config_fields.h"

namespace shardwise::model {

using base::Fields, base::shown;
using nlohmann::json;

namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

bool read_layer_type(const Fields& fields, const json& type) {
  TORCH_CHECK_VALUE(type == kFull || type == kSliding, fields.label("layer_types"), " must hold ", kFull,
                    " and ", kSliding, " only; got ", shown(type));
  return type == kSliding;
}

std::vector<bool> read_layer_types(const Fields& fields, const json& types, int64_t layers) {
  TORCH_CHECK_VALUE(types.is_array() && static_cast<int64_t>(types.size()) == layers,
                    fields.label("layer_types"), " must be a list of num_hidden_layers, ", layers,
                    ", types; got ", shown(types));
  std::vector<bool> slides;
  for (const json& type : types) slides.push_back(read_layer_type(fields, type));
  return slides;
}

/// The first `max_window_layers` see everything, those after them slide.
std::vector<bool> from_first(int64_t max_window_layers, int64_t layers) {
  std::vector<bool> slides;
  // More layers than that are refused by `validate`.
  for (int64_t layer = 0; layer < std::min(layers, kMostLayers); ++layer) {
    slides.push_back(layer >= max_window_layers);
  }
  return slides;
}

bool any(const std::vector<bool>& slides) {
  return std::count(slides.begin(), slides.end(), true) > 0;
}

/// One config for one meaning: no window where no layer has it, no list where all have.
void settle(Config& config, std::vector<bool> slides) {
  if (!any(slides)) config.sliding_window.reset();
  const bool all = std::count(slides.begin(), slides.end(), false) == 0;
  config.slides = any(slides) && !all ? std::move(slides) : std::vector<bool>();
}

}  // namespace

void read_window(const Fields& fields, Config& config) {
  if (fields.is_null("sliding_window")) config.sliding_window.reset();
  if (fields.find("sliding_window")) config.sliding_window = fields.integer("sliding_window");
}

void write_window(const Config& config, Written& out) {
  out["sliding_window"] = config.sliding_window ? Written(*config.sliding_window) : Written(nullptr);
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
  std::vector<bool> slides = types ? read_layer_types(fields, *types, config.num_hidden_layers)
                                   : from_first(max_window_layers, config.num_hidden_layers);
  TORCH_CHECK_VALUE(has_window || !types || !any(slides), fields.label("layer_types"), " must be ", kFull,
                    " throughout without use_sliding_window and a sliding_window; got ", shown(*types));
  settle(config, has_window ? std::move(slides) : std::vector<bool>());
}

void write_layered_window(const Config& config, Written& out) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    types.push_back(config.window_of(layer) ? kSliding : kFull);
  }
  out["use_sliding_window"] = config.sliding_window.has_value();
  write_window(config, out);
  // What older versions read; they have no words for a layer that sees everything after one that slides.
  out["max_window_layers"] = std::find(types.begin(), types.end(), kSliding) - types.begin();
  out["layer_types"] = types;
}

}  // namespace shardwise::model
