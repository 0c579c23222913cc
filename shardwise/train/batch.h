// From windows of text to the tensors of one micro-batch. Which windows those are depends on their numbers
// alone: every rank assembles the same ones.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/text/windows.h"

namespace shardwise::train {

/// Shapes: both [s, b] int64; labels are the ids one position on.
struct Batch {
  at::Tensor ids, labels;
  int64_t tokens() const { return labels.numel(); }  // each is a valid label
};

/// Training windows `first` to `first` + `sequences` − 1, one a column.
Batch training_batch(const text::Windows& windows, int64_t first, int64_t sequences);

/// The same of the validation windows; they must exist.
Batch validation_batch(const text::Windows& windows, int64_t first, int64_t sequences);

}  // namespace shardwise::train
