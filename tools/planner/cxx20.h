// What the standard library of emscripten 3.1 (libc++ 13, of Debian 12) lacks: algorithms of std::ranges, as
// far as the rooms use them, and std::from_chars of a double. Included before every source; empty with a
// newer library.
#pragma once
#include <version>

#if _LIBCPP_VERSION < 15000
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

namespace std::ranges {
namespace without_projection {

/// Returns `compare` of the projections of its arguments.
template <class Compare, class Projection>
auto projected(Compare compare, Projection projection) {
  return [=](const auto& a, const auto& b) {
    return invoke(compare, invoke(projection, a), invoke(projection, b));
  };
}

}  // namespace without_projection

template <class Range, class T>
auto count(Range&& range, const T& value) {
  return std::count(range.begin(), range.end(), value);
}

template <class Range, class Predicate>
auto count_if(Range&& range, Predicate predicate) {
  return std::count_if(range.begin(), range.end(), [&](const auto& x) { return invoke(predicate, x); });
}

template <class Range, class Predicate>
auto find_if(Range&& range, Predicate predicate) {
  return std::find_if(range.begin(), range.end(), [&](const auto& x) { return invoke(predicate, x); });
}

template <class Range, class Predicate>
bool all_of(Range&& range, Predicate predicate) {
  return std::all_of(range.begin(), range.end(), [&](const auto& x) { return invoke(predicate, x); });
}

template <class Range, class Predicate>
bool any_of(Range&& range, Predicate predicate) {
  return std::any_of(range.begin(), range.end(), [&](const auto& x) { return invoke(predicate, x); });
}

template <class A, class B, class Predicate>
bool equal(A&& a, B&& b, Predicate predicate) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), predicate);
}

template <class Range, class Compare = std::less<>, class Projection = std::identity>
auto max_element(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::max_element(range.begin(), range.end(), without_projection::projected(compare, projection));
}

template <class Range, class Compare = std::less<>, class Projection = std::identity>
auto min_element(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::min_element(range.begin(), range.end(), without_projection::projected(compare, projection));
}

template <class Range>
auto min(Range&& range) {
  return *std::min_element(range.begin(), range.end());
}

template <class Range, class Compare = std::less<>, class Projection = std::identity>
void sort(Range&& range, Compare compare = {}, Projection projection = {}) {
  std::sort(range.begin(), range.end(), without_projection::projected(compare, projection));
}

template <class Range, class Compare = std::less<>, class Projection = std::identity>
void stable_sort(Range&& range, Compare compare = {}, Projection projection = {}) {
  std::stable_sort(range.begin(), range.end(), without_projection::projected(compare, projection));
}

template <class Range, class Compare = std::less<>, class Projection = std::identity>
bool is_sorted(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::is_sorted(range.begin(), range.end(), without_projection::projected(compare, projection));
}

template <class Range, class T, class Compare = std::less<>, class Projection = std::identity>
auto upper_bound(Range&& range, const T& value, Compare compare = {}, Projection projection = {}) {
  return std::upper_bound(range.begin(), range.end(), value, [&](const T& a, const auto& b) {
    return invoke(compare, a, invoke(projection, b));
  });
}

}  // namespace std::ranges

namespace std {

/// Reads as strtod in the locale "C", which allows spaces and a plus sign before the number: refuses these.
inline from_chars_result from_chars(const char* first, const char* last, double& value) {
  const string text(first, last);
  if (text.empty() || text[0] == '+' || isspace(static_cast<unsigned char>(text[0])) ||
      text.find_first_of("xX") != string::npos)
    return {first, errc::invalid_argument};
  char* end = nullptr;
  errno = 0;
  const double read = strtod(text.c_str(), &end);
  if (end == text.c_str()) return {first, errc::invalid_argument};
  if (isinf(read) || (read == 0 && errno == ERANGE))
    return {end - text.c_str() + first, errc::result_out_of_range};
  value = read;
  return {first + (end - text.c_str()), errc()};
}

}  // namespace std
#endif
