#include "shardwise/checkpoint/tensor_copier.h"

#include "shardwise/io/slices.h"

namespace shardwise::checkpoint {

using base::Range;

namespace {

constexpr int64_t kBufferBytes = int64_t{8} << 20;

io::TensorInfo as_bytes(io::TensorInfo tensor) {
  tensor.dtype = io::Dtype::U8;
  tensor.shape = {tensor.bytes()};
  return tensor;
}

}  // namespace

void TensorCopier::report_written(int64_t bytes) {
  done_bytes_ += bytes;
  on_progress_(done_bytes_, all_bytes_);
}

void TensorCopier::copy(const TensorSource& from, const io::SafetensorsWriter& file, const io::TensorInfo& to,
                        int64_t dim) {
  const Range source{from.file_begin, from.file_begin + from.size},
      target{from.begin, from.begin + from.size};
  for (const Range& rows : io::block_rows(*from.tensor, dim, source, kBufferBytes)) {
    const io::RowBlock block = io::block_of(*from.tensor, dim, source, rows);
    buffer_.resize(block.bytes());
    io::read_block(*from.file, block, buffer_.data());
    io::write_block(file, io::block_of(to, dim, target, rows), buffer_.data());
    report_written(block.bytes());
  }
}

void TensorCopier::copy_full(const TensorSource& from, const io::SafetensorsWriter& file,
                             const io::TensorInfo& to) {
  const io::TensorInfo source = as_bytes(*from.tensor);
  copy({from.file, &source, 0, 0, source.bytes()}, file, as_bytes(to), /*dim=*/0);
}

}  // namespace shardwise::checkpoint
