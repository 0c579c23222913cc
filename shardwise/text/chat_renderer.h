// The module that renders chat templates, opened when it is first needed (docs/adr/0011).
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace shardwise::text {

/// Hands a request to jinja/render.py and returns its answer: `text`, or `error` in one line of words.
/// Errors: c10::ValueError when a string of the request is not UTF-8; c10::Error when the module or the
/// Python in it does not start.
nlohmann::json answer_of_renderer(const nlohmann::ordered_json& request);

}  // namespace shardwise::text
