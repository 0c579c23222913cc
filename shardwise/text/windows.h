// Training and validation windows of a token sequence. The positions depend on the seed alone.
//
// A window is seq_len + 1 tokens: the first seq_len are inputs, the last seq_len their labels. Windows are
// numbered over the whole run, so the data does not depend on the number of ranks or the batch size.
#pragma once
#include <cstdint>
#include <span>

#include "shardwise/text/token_source.h"

namespace shardwise::text {

/// The options of Windows.
struct WindowOptions {
  int64_t seq_len;
  uint64_t seed;
  double val_fraction = 0;        // fraction of the tokens, taken from their end; 0: no validation
  int64_t windows_per_batch = 1;  // minimum number of disjoint windows in the training part
};

/// The windows of a token sequence.
class Windows {
 public:
  /// Splits `tokens`, which must outlive this, into a training and a validation part. Throws c10::ValueError
  /// if seq_len < 1, val_fraction is outside [0, 1), the training part is shorter than a batch, or the
  /// validation part is shorter than a window although val_fraction > 0.
  Windows(const TokenSource& tokens, const WindowOptions& options);

  int64_t seq_len() const { return options_.seq_len; }

  /// Returns the position of training window `number`, drawn uniformly by (seed, number) from all that fit.
  int64_t training_offset(int64_t number) const;
  /// Reads the seq_len + 1 tokens of training window `number` >= 0.
  void read_training(int64_t number, std::span<int64_t> tokens) const;

  /// The number of validation windows. They are consecutive; each token is a label at most once, and a
  /// remainder shorter than a window is skipped.
  int64_t validation_count() const { return validation_count_; }
  /// Returns the position of validation window `number`.
  int64_t validation_offset(int64_t number) const;
  /// Reads the seq_len + 1 tokens of validation window `number`.
  void read_validation(int64_t number, std::span<int64_t> tokens) const;

 private:
  void read(int64_t offset, std::span<int64_t> tokens) const;

  const TokenSource& tokens_;
  WindowOptions options_;
  int64_t training_tokens_;
  int64_t validation_count_;
};

}  // namespace shardwise::text
