// An option with a default: a value, and whether it was given.
#pragma once
#include <utility>

namespace shardwise::base {

/// The value of an option that is not given.
template <class T>
struct Default {
  /// Makes the default `of_option`.
  explicit Default(T of_option) : value(std::move(of_option)) {}
  T value;  // of the option
};

/// An option that is read and assigned like a T and records whether it was given, also if the given value is
/// the default.
template <class T>
class Setting {
 public:
  /// Makes an option that is not given.
  template <class U>
  Setting(Default<U> value) : value_(std::move(value.value)) {}
  /// Makes an option that is given.
  Setting(T value) : value_(std::move(value)), is_given_(true) {}
  /// Returns the value, given or not.
  operator T() const { return value_; }
  /// Returns false while the value is a default.
  bool is_given() const { return is_given_; }

 private:
  T value_;
  bool is_given_ = false;
};

}  // namespace shardwise::base
