// What a layer needs to know of the forward it runs in.
#pragma once
#include <ATen/core/grad_mode.h>

#include "shardwise/base/recompute.h"
#include "shardwise/nn/cache.h"
#include "shardwise/parallel/step.h"

namespace shardwise::nn {

struct Step : parallel::Step {
  double dropout = 0;            // probability of dropping, on the stream, in [0, 1]; 0 outside training
  double attention_dropout = 0;  // the same, of attention's probabilities; in [0, 1)
  /// Per sequence of the batch, the positions that hold tokens, the same on every rank; the others, on either
  /// side, are padding: nothing sees them, and they have no loss. Empty: every position holds a token.
  std::vector<base::Range> valid;
  base::Recompute recompute = base::Recompute::none;
  /// Under TP, where gradients are recorded, the blocks run on two halves of the batch (split_batch.h).
  bool split_batch = false;
  /// Inference: the batch is one packed sequence, whose rows belong to these texts one after the other.
  /// Empty: a text begins with its sequence.
  std::vector<CachedRows> cached = {};
  using parallel::Step::Step;
};

/// Before anything communicates: whether `step` fits a batch of b sequences. Errors: c10::ValueError unless
/// `valid` is empty or names a part of the sequence for each of them, the probabilities are in range, and
/// `cached`, if not empty, deals out the rows of a batch of one without padding and dropout, each text's
/// within the room of its cache; and `split_batch` has two sequences or more, without dropout and full
/// recomputation.
void check_step(const Step& step, int64_t b);

/// Checks what `split_batch` needs. Dropout masks are drawn for full batches, and a block that is recomputed
/// completes its own reductions.
void check_split_batch(const Step& step, int64_t b);

/// Whether a branch leaves its reduction to the next norm: no gradient is recorded, and nothing is computed
/// between the reduction and the residual sum.
inline bool defers_reductions(const Step& step) {
  return !at::GradMode::is_enabled() && step.dropout == 0 && step.recompute == base::Recompute::none;
}

}  // namespace shardwise::nn
