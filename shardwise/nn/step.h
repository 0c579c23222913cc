// The settings of one forward and its backward that model layers need.
#pragma once
#include <ATen/core/grad_mode.h>

#include <functional>

#include "shardwise/base/recompute.h"
#include "shardwise/nn/cache.h"
#include "shardwise/parallel/step.h"

namespace shardwise::nn {

class NewTokens;

/// Called with the number of a part of the model (model::DecoderWeights has its parts).
using OnPart = std::function<void(int64_t part)>;

/// parallel::Step with dropout, padding, recomputation and KV caches.
struct Step : parallel::Step {
  double dropout = 0;            // probability on the residual stream, in [0, 1]; 0 outside training
  double attention_dropout = 0;  // probability on attention probabilities, in [0, 1); 0 outside training
  /// The positions that contain tokens, one range per sequence of the batch, equal on every rank. Positions
  /// before and after are padding: no token attends to them, and they have no loss. Empty: there is no
  /// padding.
  std::vector<base::Range> valid;
  base::Recompute recompute = base::Recompute::none;  // what backward recomputes
  /// Runs the blocks with the split-batch schedule where gradients are recorded (split_batch.h has its
  /// rules).
  bool split_batch = false;
  /// Inference with KV caches: the batch is [Σ rows, 1], the new tokens of these sequences one after the
  /// other. Empty: no caches.
  std::vector<CachedRows> cached = {};
  /// The rows of `cached` once more, if each sequence has few: not owned, and set to them. Null: layers make
  /// what they need.
  const NewTokens* new_tokens = nullptr;
  /// Called in the forward before each part computes; not owned. Null: nothing is called.
  const OnPart* part_begins = nullptr;
  /// Called in backward once all gradients of a part have been added, for every part but the first, from the
  /// last to the first, if the gradient of the part's input is computed; not owned. Null: nothing is called.
  const OnPart* part_gradients_done = nullptr;
  using parallel::Step::Step;
};

/// Checks that `step` fits a batch of b sequences, before any communication.
/// Errors: c10::ValueError if `valid` is not empty and does not have a range within the sequence for each of
/// the b sequences; if a probability is out of range; if `cached` is not empty and its rows do not add up to
/// a batch of one, exceed a cache's capacity, or are combined with padding or dropout.
void check_step(const Step& step, int64_t b);

/// True if a branch defers its reduction to the next norm: no gradients are recorded, no op comes between the
/// reduction and the residual add, and the branch's bias, which that norm adds, stays: weights that are
/// gathered part by part do not, because the next part's gather may write over them.
inline bool defers_reductions(const Step& step) {
  return !at::GradMode::is_enabled() && step.dropout == 0 && step.recompute == base::Recompute::none &&
         !step.part_begins;
}

}  // namespace shardwise::nn
