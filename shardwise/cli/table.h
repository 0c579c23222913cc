// Formatting of rows as aligned columns.
#pragma once
#include <string>
#include <vector>

namespace shardwise::cli {

using Row = std::vector<std::string>;

/// Returns one line per row, with columns two spaces apart and as wide as their widest cell.
std::string table(const std::vector<Row>& rows);

}  // namespace shardwise::cli
