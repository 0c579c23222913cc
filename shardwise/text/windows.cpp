#include "shardwise/text/windows.h"

#include <c10/util/Exception.h>

#include "shardwise/base/philox.h"

namespace shardwise::text {
namespace {

/// Returns a number in [0, count) drawn by (seed, number), uniform except for a bias below count / 2^64.
int64_t draw(uint64_t seed, uint64_t number, int64_t count) {
  const base::PhiloxBlock block = base::philox(number, base::PhiloxUse::windows, seed);
  const uint64_t bits = uint64_t{block.word[1]} << 32 | block.word[0];
  return static_cast<int64_t>(static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(count) >> 64);
}

int64_t validation_tokens(const TokenSource& tokens, const WindowOptions& options) {
  TORCH_CHECK_VALUE(options.val_fraction >= 0 && options.val_fraction < 1,
                    "text: val_fraction must be at least 0 and below 1; got ", options.val_fraction,
                    " [SW0147]");
  return static_cast<int64_t>(static_cast<double>(tokens.size()) * options.val_fraction);
}

}  // namespace

Windows::Windows(const TokenSource& tokens, const WindowOptions& options)
    : tokens_(tokens), options_(options) {
  const int64_t validation = validation_tokens(tokens, options);
  training_tokens_ = tokens.size() - validation;
  TORCH_CHECK_VALUE(options.seq_len >= 1, "text: seq_len must be at least 1; got ", options.seq_len,
                    " [SW0148]");
  TORCH_CHECK_VALUE(options.windows_per_batch >= 1, "text: windows_per_batch must be at least 1; got ",
                    options.windows_per_batch, " [SW0149]");
  // windows_per_batch * seq_len + 1 tokens; the division avoids an overflow.
  TORCH_CHECK_VALUE((training_tokens_ - 1) / options.seq_len >= options.windows_per_batch,
                    "text: must have at least one batch of ", options.windows_per_batch, " x ",
                    options.seq_len, " + 1 tokens for training; got ", training_tokens_,
                    "; give more text or a smaller batch [SW0145]");
  validation_count_ = validation > 0 ? (validation - 1) / options.seq_len : 0;
  TORCH_CHECK_VALUE(options.val_fraction == 0 || validation_count_ > 0,
                    "text: val_fraction must leave at least ", options.seq_len,
                    " + 1 tokens for validation; got ", validation, " for ", options.val_fraction,
                    " [SW0146]");
}

int64_t Windows::training_offset(int64_t number) const {
  return draw(options_.seed, static_cast<uint64_t>(number), training_tokens_ - options_.seq_len);
}

void Windows::read_training(int64_t number, std::span<int64_t> tokens) const {
  read(training_offset(number), tokens);
}

int64_t Windows::validation_offset(int64_t number) const {
  TORCH_CHECK_VALUE(number >= 0 && number < validation_count_, "text: validation window must be below ",
                    validation_count_, "; got ", number, " [SW0151]");
  return training_tokens_ + number * options_.seq_len;
}

void Windows::read_validation(int64_t number, std::span<int64_t> tokens) const {
  read(validation_offset(number), tokens);
}

void Windows::read(int64_t offset, std::span<int64_t> tokens) const {
  TORCH_CHECK_VALUE(static_cast<int64_t>(tokens.size()) == options_.seq_len + 1,
                    "text: a window buffer must have seq_len + 1 tokens, ", options_.seq_len + 1, "; got ",
                    tokens.size(), " [SW0152]");
  tokens_.read(offset, tokens);
}

}  // namespace shardwise::text
