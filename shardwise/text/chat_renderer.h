// Loads the module that renders chat templates at its first use (docs/adr/0011).
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::text {

/// Sends a request to jinja/render.py and returns its answer: an object with `text`, or with `error`.
/// Throws c10::ValueError if a string of the request is not UTF-8, and c10::Error if the module or its Python
/// interpreter cannot start.
nlohmann::json render_request(const nlohmann::ordered_json& request);

}  // namespace shardwise::text
