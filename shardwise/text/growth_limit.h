// Limits how much longer the steps of a tokenizer make text.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shardwise::text {

/// The bytes that a tokenizer's steps may make of their input, all steps and all parts of the input together:
/// a file of 3 KB can have 40 steps that each double the text.
class GrowthLimit {
 public:
  /// Far above the factor of a real tokenizer. Unicode's normalization forms, with U+2581 for spaces,
  /// lengthen U+FDFA most: 13 times.
  static constexpr uint64_t kMaxFactor = 32;
  /// What a short text may get in addition.
  static constexpr uint64_t kMaxAddedBytes = 64 << 10;
  /// The longest text that can be encoded: positions in it have 32 bits.
  static constexpr uint64_t kMaxBytes = (uint64_t{1} << 32) - 4;

  explicit GrowthLimit(size_t input_bytes = 0) : input_bytes_(input_bytes) {}
  void add_input(size_t bytes) { input_bytes_ += bytes; }
  /// Checks text of `bytes` between two steps, in addition to all output. Errors: c10::ValueError.
  void check(size_t bytes) const {
    if (bytes > kMaxBytes || bytes > most() - output_bytes_) fail(bytes);
  }
  /// Adds text to the output. Errors: those of check.
  void add_output(size_t bytes) {
    check(bytes);
    output_bytes_ += bytes;
  }

 private:
  uint64_t most() const { return kMaxFactor * input_bytes_ + kMaxAddedBytes; }
  [[noreturn]] void fail(size_t bytes) const;

  uint64_t input_bytes_, output_bytes_ = 0;
};

}  // namespace shardwise::text
