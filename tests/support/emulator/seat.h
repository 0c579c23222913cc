// What an emulated thread runs on: a stack, and a clock that stays with it.
#pragma once
#include <array>
#include <vector>

#include "tests/support/emulator/sanitizers.h"

namespace shardwise::emulator {

/// A stack and its clock.
struct Seat {
  char* begin;
  size_t bytes;
  Clock clock;
  Stack stack() const { return {begin, bytes}; }
};

/// Seats that are used again, because a clock takes 0.2 ms. They are in two sets, and a block has seats of
/// one: what two blocks of different sets do is unordered, however often their seats were used before.
class Seats {
 public:
  static constexpr int kSets = 2;
  ~Seats();

  /// Errors: Fault if the system has no memory for a stack.
  Seat take(int set);
  void give_back(int set, const Seat& seat) { spare_[set].push_back(seat); }

 private:
  std::array<std::vector<Seat>, kSets> spare_;
};

}  // namespace shardwise::emulator
