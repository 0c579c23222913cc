// The median of measured times.
#pragma once
#include <algorithm>
#include <vector>

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
