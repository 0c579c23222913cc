// Builds the tensors of one micro-batch from windows of the token sequence. The window numbers alone select
// the windows, so every rank builds the same batch.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/text/windows.h"

namespace shardwise::train {

/// One micro-batch. Shapes: both [s, b] int64; `labels` are the ids shifted by one position.
struct Batch {
  at::Tensor ids, labels;
  int64_t tokens() const { return labels.numel(); }  // every label is valid
};

/// Returns training windows `first` to `first` + `sequences` − 1, one per column.
Batch training_batch(const text::Windows& windows, int64_t first, int64_t sequences);

/// Returns validation windows `first` to `first` + `sequences` − 1, one per column. They must exist.
Batch validation_batch(const text::Windows& windows, int64_t first, int64_t sequences);

}  // namespace shardwise::train
