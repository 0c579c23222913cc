// The logits that the host knows of a row on a device: those among which the next token is sampled.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"

namespace shardwise::infer {

/// Some logits of a row, in ascending order of ids. Of the others none is NaN if none of these is.
class KnownLogits {
 public:
  KnownLogits(std::map<int64_t, double> logits) : logits_(std::move(logits)) {}

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

/// Returns the keys (kernels/logit_keys.h) of a shard's logits that the host has to know: of the tokens
/// `ids[row]`, as far as the shard has them, and of the `count` highest of the others. Keys that mean no
/// token make up for tokens that it has not. Shapes: `logits` [n, v/t] on a device other than the CPU → [n,
/// count + 2 · the most ids of a row].
at::Tensor chosen_keys(const at::Tensor& logits, const base::Range& shard, int64_t count,
                       const std::vector<std::vector<int64_t>>& ids);

/// Returns what chosen_keys of all ranks say. Shapes: `keys` [ranks, n, chosen] on the host.
std::vector<KnownLogits> known_logits(const at::Tensor& keys, const base::Split& vocab);

/// Fetches of each row the logits of the tokens `ids[row]`, and the `count` highest of the others. `ids` are
/// the same on every rank. Shapes: `logits` [n, v/t] on a device other than the CPU. Cost: one all_gather and
/// one copy to the host, of 8 bytes for each key of all ranks.
std::vector<KnownLogits> fetch_logits(const at::Tensor& logits, const base::Split& vocab, int64_t count,
                                      const std::vector<std::vector<int64_t>>& ids, const comm::Group& group);

}  // namespace shardwise::infer
