// The rate of an operation, which grows with its size.
#pragma once
#include <string>
#include <vector>

namespace shardwise::plan {

/// Work per second at several sizes: FLOP of products, bytes of what only moves memory.
class Rate {
 public:
  /// The rate at one size.
  struct Point {
    double work;        // FLOP or bytes of one operation
    double per_second;  // rate at this size
  };

  Rate() = default;
  /// `points` by ascending work. Errors: c10::ValueError if there is none, or if they are not positive and
  /// ascending.
  Rate(std::vector<Point> points, std::string source);

  /// Returns the rate of an operation. Between two points the rate is linear in the logarithm of the work.
  double at(double work) const;
  /// Returns the seconds of an operation; what is smaller than all takes as long as the smallest.
  double seconds(double work) const;

  /// Returns the sizes with their rates, by ascending work.
  const std::vector<Point>& points() const { return points_; }
  /// Returns where the rates were published or how they were measured.
  const std::string& source() const { return source_; }

 private:
  std::vector<Point> points_;
  std::string source_;
};

}  // namespace shardwise::plan
