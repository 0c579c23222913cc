#include "shardwise/train/batch.h"

#include <ATen/ops/empty.h>

namespace shardwise::train {
namespace {

using ReadWindow = void (text::Windows::*)(int64_t, std::span<int64_t>) const;

Batch read_batch(const text::Windows& windows, ReadWindow read, int64_t first, int64_t sequences) {
  const int64_t length = windows.seq_len();
  const at::Tensor tokens = at::empty({sequences, length + 1}, at::kLong);
  int64_t* row = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < sequences; ++i, row += length + 1) {
    (windows.*read)(first + i, {row, static_cast<size_t>(length + 1)});
  }
  return {tokens.narrow(/*dim=*/1, 0, length).t().contiguous(),
          tokens.narrow(/*dim=*/1, 1, length).t().contiguous()};
}

}  // namespace

Batch training_batch(const text::Windows& windows, int64_t first, int64_t sequences) {
  return read_batch(windows, &text::Windows::read_training, first, sequences);
}

Batch validation_batch(const text::Windows& windows, int64_t first, int64_t sequences) {
  return read_batch(windows, &text::Windows::read_validation, first, sequences);
}

}  // namespace shardwise::train
