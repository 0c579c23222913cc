// Loads the module that renders chat templates at its first use (docs/adr/0011).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::text {

/// Limits of one rendering: a thousand times what real templates need.
struct RenderLimits {
  double seconds = 10;
  int64_t bytes = int64_t{256} << 20;  // of Python's objects
};

/// Sends a request to jinja/render.py and returns its answer: an object with `text`, with `error`, or with
/// `limit`, time or memory, if it reached that limit.
/// Throws c10::ValueError if a string of the request is not UTF-8, and c10::Error if the module or its Python
/// interpreter cannot start.
nlohmann::json render_request(const nlohmann::ordered_json& request, const RenderLimits& limits = {});

}  // namespace shardwise::text
