// Which stretches of a text training and validation see: a function of the seed alone.
//
// A window is seq_len + 1 tokens: the first seq_len are inputs, the last seq_len their labels. Windows know
// nothing of ranks or batches: the caller numbers them over the whole job, so that neither changes what is
// seen.
#pragma once
#include <cstdint>
#include <span>

#include "shardwise/text/token_source.h"

namespace shardwise::text {

struct WindowOptions {
  int64_t seq_len;
  uint64_t seed;
  double val_fraction = 0;        // of the tokens, taken from the text's tail; 0: no validation
  int64_t windows_per_batch = 1;  // the training part must hold so many side by side
};

class Windows {
 public:
  /// `tokens` must outlive this.
  /// Errors: c10::ValueError for seq_len < 1, val_fraction outside [0, 1), a training part shorter than a
  /// batch, or a validation part (where val_fraction > 0) shorter than a window.
  Windows(const TokenSource& tokens, const WindowOptions& options);

  int64_t seq_len() const { return options_.seq_len; }

  /// First token of training window `number`: drawn from (seed, number), uniform over all that fit.
  int64_t training_offset(int64_t number) const;
  /// The seq_len + 1 tokens of training window `number` >= 0.
  void training(int64_t number, std::span<int64_t> tokens) const;

  /// Validation windows follow each other; each token of the part is a label at most once (one that does not
  /// fill a window is left out).
  int64_t validation_count() const { return validation_count_; }
  int64_t validation_offset(int64_t number) const;
  void validation(int64_t number, std::span<int64_t> tokens) const;

 private:
  void read(int64_t offset, std::span<int64_t> tokens) const;

  const TokenSource& tokens_;
  WindowOptions options_;
  int64_t training_tokens_;
  int64_t validation_count_;
};

}  // namespace shardwise::text
