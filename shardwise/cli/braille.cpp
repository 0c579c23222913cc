#include "shardwise/cli/braille.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace shardwise::cli {
namespace {

constexpr int kDotsAcross = 2, kDotsDown = 4;

struct Dot {
  int x, y;  // from the left and the top
};

/// The dots of a frame; each byte has those of one character.
class Dots {
 public:
  explicit Dots(const BrailleFrame& frame)
      : frame_(frame), bits_(size_t(frame.rows), std::vector<uint8_t>(size_t(frame.columns))) {}

  Dot at(double x, double y) const {
    const double across = share_of(x, frame_.left, frame_.right),
                 down = 1 - share_of(y, frame_.low, frame_.high);
    return {static_cast<int>(std::lround(across * (frame_.columns * kDotsAcross - 1))),
            static_cast<int>(std::lround(down * (frame_.rows * kDotsDown - 1)))};
  }

  void draw(Dot from, Dot to) {
    const int steps = std::max({std::abs(to.x - from.x), std::abs(to.y - from.y), 1});
    for (int i = 0; i <= steps; ++i) {
      const double share = double(i) / steps;
      set({static_cast<int>(std::lround(from.x + share * (to.x - from.x))),
           static_cast<int>(std::lround(from.y + share * (to.y - from.y)))});
    }
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const auto& row : bits_) {
      std::string& line = lines.emplace_back();
      for (const uint8_t bits : row) {  // the UTF-8 of U+2800 + bits
        line += '\xe2';
        line += static_cast<char>(0xa0 | (bits >> 6));
        line += static_cast<char>(0x80 | (bits & 0x3f));
      }
    }
    return lines;
  }

 private:
  static double share_of(double value, double begin, double end) {
    return end > begin ? std::clamp((value - begin) / (end - begin), 0., 1.) : 0;
  }
  void set(Dot dot) {
    // Of the eight dots the lowest two were added to braille last, so their bits are the highest.
    static constexpr uint8_t kBits[kDotsDown][kDotsAcross] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    bits_[size_t(dot.y / kDotsDown)][size_t(dot.x / kDotsAcross)] |=
        kBits[dot.y % kDotsDown][dot.x % kDotsAcross];
  }

  const BrailleFrame& frame_;
  std::vector<std::vector<uint8_t>> bits_;
};

}  // namespace

std::vector<std::string> braille_curve(const std::vector<std::pair<double, double>>& points,
                                       const BrailleFrame& frame) {
  Dots dots(frame);
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [from_x, from_y] = points[i == 0 ? 0 : i - 1];
    dots.draw(dots.at(from_x, from_y), dots.at(points[i].first, points[i].second));
  }
  return dots.lines();
}

}  // namespace shardwise::cli
