#include "shardwise/io/slices.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace shardwise::io {
namespace {

using Piece = base::ShardRule::Piece;

template <typename Iterator>
int64_t product(Iterator begin, Iterator end, int64_t first) {
  return std::accumulate(begin, end, first, std::multiplies<>());
}

void check_piece(const std::vector<int64_t>& shape, int64_t dim, const Piece& piece, int64_t local_size) {
  const auto dims = static_cast<int64_t>(shape.size());
  TORCH_CHECK_VALUE(dim >= 0 && dim < dims, "slice: dim must be below the tensor's ", dims, "; got ", dim,
                    " [SW0395]");
  const auto fits = [&](int64_t begin, int64_t size) { return begin >= 0 && begin <= size - piece.size; };
  TORCH_CHECK_VALUE(
      piece.size >= 0 && fits(piece.global_begin, shape[dim]) && fits(piece.local_begin, local_size),
      "slice: must be within tensor and buffer; got ", piece.size, " indices at ", piece.global_begin, " of ",
      shape[dim], " and at ", piece.local_begin, " of ", local_size, " [SW0396]");
}

}  // namespace

void for_each_run(const std::vector<int64_t>& shape, int64_t itemsize, int64_t dim, const Piece& piece,
                  int64_t local_size, const std::function<void(const ByteRun&)>& visit) {
  check_piece(shape, dim, piece, local_size);
  int64_t outer = product(shape.begin(), shape.begin() + dim, 1);
  int64_t index_bytes = product(shape.begin() + dim + 1, shape.end(), itemsize);
  int64_t global_size = shape[dim];
  Piece run = piece;
  if (piece.size == global_size &&
      piece.size == local_size) {  // covers both completely: contiguous over the outer dims too
    run.size = global_size = local_size = outer * piece.size;
    outer = 1;
  }
  if (run.size == 0 || index_bytes == 0) return;
  for (int64_t i = 0; i < outer; ++i) {
    visit({(i * global_size + run.global_begin) * index_bytes,
           (i * local_size + run.local_begin) * index_bytes, run.size * index_bytes});
  }
}

void write_piece(const SafetensorsWriter& file, const TensorInfo& tensor, int64_t dim, const Piece& piece,
                 int64_t local_size, const void* src) {
  for_each_run(tensor.shape, itemsize(tensor.dtype), dim, piece, local_size, [&](const ByteRun& run) {
    file.write(tensor, run.file_offset, run.bytes, static_cast<const char*>(src) + run.buffer_offset);
  });
}

int64_t RowBlock::bytes() const {
  return piece.size == 0 ? 0 : rows.bytes() / rows.shape[dim] * piece.size;
}

RowBlock block_of(const TensorInfo& tensor, int64_t dim, base::Range slice, base::Range rows) {
  check_piece(tensor.shape, dim, {slice.begin, /*local_begin=*/0, slice.size()}, slice.size());
  if (dim == 0) rows = {slice.begin + rows.begin, slice.begin + rows.end};
  check_piece(tensor.shape, /*dim=*/0, {rows.begin, /*local_begin=*/0, rows.size()}, rows.size());
  const int64_t row_bytes = product(tensor.shape.begin() + 1, tensor.shape.end(), itemsize(tensor.dtype));
  RowBlock block{tensor, dim, {dim == 0 ? 0 : slice.begin, 0, dim == 0 ? rows.size() : slice.size()}};
  block.rows.shape[0] = rows.size();
  block.rows.begin = tensor.begin + rows.begin * row_bytes;
  block.rows.end = tensor.begin + rows.end * row_bytes;
  return block;
}

RowBlock rectangle_of(const TensorInfo& tensor, base::Range rows, base::Range columns) {
  if (tensor.shape.size() == 1) return block_of(tensor, /*dim=*/0, rows, {0, rows.size()});
  return block_of(tensor, /*dim=*/1, columns, rows);
}

std::vector<base::Range> row_blocks(int64_t rows, int64_t row_bytes, int64_t max_bytes) {
  const int64_t step = std::max<int64_t>(max_bytes / std::max<int64_t>(row_bytes, 1), 1);
  std::vector<base::Range> blocks;
  for (int64_t row = 0; row < rows; row += step) blocks.push_back({row, std::min(row + step, rows)});
  return blocks;
}

std::vector<base::Range> block_rows(const TensorInfo& tensor, int64_t dim, base::Range slice,
                                    int64_t max_bytes) {
  std::vector<int64_t> shape = tensor.shape;
  shape.at(dim) = slice.size();
  const int64_t row_bytes = product(shape.begin() + 1, shape.end(), itemsize(tensor.dtype));
  if (row_bytes == 0) return {};
  return row_blocks(shape[0], row_bytes, max_bytes);
}

void read_block(const SafetensorsFile& file, const RowBlock& block, void* dst) {
  for_each_run(block.rows.shape, itemsize(block.rows.dtype), block.dim, block.piece, block.piece.size,
               [&](const ByteRun& run) {
                 file.read(block.rows, run.file_offset, run.bytes,
                           static_cast<char*>(dst) + run.buffer_offset);
               });
}

void write_block(const SafetensorsWriter& file, const RowBlock& block, const void* src) {
  write_piece(file, block.rows, block.dim, block.piece, block.piece.size, src);
}

}  // namespace shardwise::io
