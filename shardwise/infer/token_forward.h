// Forwards of decoding.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "shardwise/infer/stage_forward.h"
#include "shardwise/kernels/device.h"
#include "shardwise/nn/new_tokens.h"

namespace shardwise::infer {

/// Forwards of a few new tokens for each of several sequences, whose every row is followed by a token that is
/// sampled. On a device other than the CPU, the second forward of a number of tokens is captured as a graph,
/// and from then on the host queues one copy and that graph for each: kernels of few rows take less time than
/// queuing them one by one. Forwards over several pipeline stages are not captured.
class TokenForward {
 public:
  /// For caches of at most `capacity` tokens. Both must outlive it.
  TokenForward(const model::DecoderWeights& weights, const StageForward& stage, int64_t capacity)
      : weights_(weights), stage_(stage), capacity_(capacity) {}

  /// Returns the logits [n, v/t] of `ids` [n, 1], which the next forward of as many tokens may overwrite;
  /// undefined except on the last stage. It appends to the caches of `sequences`; the caller advances their
  /// lengths. Errors: those of model::Decoder::logits, and of nn::NewTokens::set.
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
  const StageForward& stage_;
  int64_t capacity_;
  std::map<int64_t, Size> sizes_;  // by the number of tokens
};

}  // namespace shardwise::infer
