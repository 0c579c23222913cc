// The logits that the host knows of a row on a device: those among which the next token is sampled.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace shardwise::infer {

/// Some logits of a row, in ascending order of ids. Of the others none is NaN if none of these is.
class KnownLogits {
 public:
  explicit KnownLogits(std::map<int64_t, double> logits) : logits_(std::move(logits)) {}

  bool contain(int64_t id) const { return logits_.contains(id); }
  /// Returns the logit of a token that they contain.
  double of(int64_t id) const { return logits_.at(id); }
  /// Returns the first token from `id` on whose logit is NaN or above `bound`, or the end.
  int64_t first_above(int64_t id, double bound) const;
  int64_t begin() const { return logits_.empty() ? 0 : logits_.begin()->first; }
  int64_t end() const { return logits_.empty() ? 0 : logits_.rbegin()->first + 1; }

 private:
  std::map<int64_t, double> logits_;
};

/// Fetches of each row the logits of the tokens `ids[row]`, as far as the row has them, and the `count`
/// highest of the others. Shapes: `logits` [n, v] on a device other than the CPU; their ids begin at `begin`.
/// Cost: one copy to the host, of 8 bytes for each of n · (count + 2 · the most ids of a row) tokens.
std::vector<KnownLogits> fetch_logits(const at::Tensor& logits, int64_t begin, int64_t count,
                                      const std::vector<std::vector<int64_t>>& ids);

}  // namespace shardwise::infer
