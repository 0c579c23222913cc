// Rows of text as columns.
#pragma once
#include <string>
#include <vector>

namespace shardwise::cli {

using Row = std::vector<std::string>;

/// Columns two spaces apart, each as wide as its widest text; a line for each row.
std::string table(const std::vector<Row>& rows);

}  // namespace shardwise::cli
