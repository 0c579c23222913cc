// What `shardwise inspect` prints about a directory.
#pragma once
#include <string>

#include "shardwise/checkpoint/inspect.h"
#include "shardwise/checkpoint/inspect_panels.h"

namespace shardwise::cli {

/// Returns a table of the tensors, and a line about all of them.
std::string to_text(const checkpoint::Inspection& found);
std::string to_text(const checkpoint::PanelInspection& found);

/// Returns a line with one JSON object.
std::string to_json(const checkpoint::Inspection& found);
std::string to_json(const checkpoint::PanelInspection& found);

}  // namespace shardwise::cli
