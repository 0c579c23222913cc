// Forwards of decoding.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "shardwise/kernels/device.h"
#include "shardwise/model/decoder.h"
#include "shardwise/nn/new_tokens.h"

namespace shardwise::infer {

/// Forwards of a few new tokens for each of several sequences, whose every row is followed by a token that is
/// sampled. On a device other than the CPU, the second forward of a number of tokens is captured as a graph,
/// and from then on the host queues one copy and that graph for each: kernels of few rows take less time than
/// queuing them one by one.
class TokenForward {
 public:
  /// For caches of at most `capacity` tokens. `weights` must outlive it, and may not move.
  TokenForward(const model::DecoderWeights& weights, int64_t capacity)
      : weights_(weights), capacity_(capacity) {}

  /// Returns the logits [n, v/t] of `ids` [n, 1], which the next forward of as many tokens may overwrite. It
  /// appends to the caches of `sequences`; the caller advances their lengths.
  /// Errors: those of model::Decoder::logits, and of nn::NewTokens::set.
  at::Tensor logits(const at::Tensor& ids, const std::vector<nn::CachedRows>& sequences);

 private:
  /// What is kept for a number of tokens.
  struct Size {
    nn::NewTokens tokens;
    bool was_run = false;
    at::Tensor logits = {};  // that the graph writes
    std::unique_ptr<kernels::DeviceGraph> graph = {};
  };
  at::Tensor forward(const Size& size, const nn::Step& step) const;

  const model::DecoderWeights& weights_;
  int64_t capacity_;
  std::map<int64_t, Size> sizes_;  // by the number of tokens
};

}  // namespace shardwise::infer
