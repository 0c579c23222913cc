// Curves as text: characters of 2 x 4 dots (braille, U+2800 to U+28FF).
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace shardwise::cli {

/// A rectangle of characters, and the values at its edges.
struct BrailleFrame {
  int columns, rows;
  double left, right, low, high;
};

/// Returns the frame's lines, top first, with the line through `points` (x, y). Values beyond the edges are
/// drawn at them.
std::vector<std::string> braille_curve(const std::vector<std::pair<double, double>>& points,
                                       const BrailleFrame& frame);

}  // namespace shardwise::cli
