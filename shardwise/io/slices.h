// Copies a slice along one dim of a row-major tensor between a file and a contiguous buffer, with as few
// reads or writes as the shape allows. base::ShardRule determines each rank's slice.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/io/writer.h"

namespace shardwise::io {

/// A range of bytes that is contiguous in the file and in the buffer. Offsets are relative to the tensor's
/// and the buffer's first byte.
struct ByteRun {
  int64_t file_offset, buffer_offset, bytes;
  bool operator==(const ByteRun&) const = default;
};

/// Calls `visit` for each contiguous run of the indices [piece.global_begin, + piece.size) along `dim` of a
/// tensor of `shape`. They correspond to [piece.local_begin, + piece.size) along `dim` of a buffer that has
/// `local_size` indices along `dim`. Cost: one run if the piece covers both completely or all dims before
/// `dim` are 1; otherwise one run per index of those dims. Errors: c10::ValueError if `dim` or `piece` is out
/// of range.
void for_each_run(const std::vector<int64_t>& shape, int64_t itemsize, int64_t dim,
                  const base::ShardRule::Piece& piece, int64_t local_size,
                  const std::function<void(const ByteRun&)>& visit);

/// Writes a piece of a tensor from `src`, a buffer that has `local_size` indices along `dim`.
void write_piece(const SafetensorsWriter& file, const TensorInfo& tensor, int64_t dim,
                 const base::ShardRule::Piece& piece, int64_t local_size, const void* src);

/// A range of rows (indices of the first dim) of a slice along `dim`. A buffer holds only the block.
struct RowBlock {
  TensorInfo rows;  // these rows of the tensor, described as a separate tensor
  int64_t dim;
  base::ShardRule::Piece piece;  // of `rows`
  int64_t bytes() const;         // of the block
};

/// Returns the rows [rows.begin, rows.end) of the slice [slice.begin, slice.end) along `dim`. If `dim` is 0,
/// rows are relative to the slice's first. The tensor has a dim. Errors: c10::ValueError if out of range.
RowBlock block_of(const TensorInfo& tensor, int64_t dim, base::Range slice, base::Range rows);

/// Returns a rectangle of a tensor: `rows` by `columns`, which are indices of the second dim; a tensor of one
/// dim has none. Errors: c10::ValueError if out of range.
RowBlock rectangle_of(const TensorInfo& tensor, base::Range rows, base::Range columns);

/// Partitions [0, rows) into ranges of at most `max_bytes`, with `row_bytes` per row, and at least one row.
std::vector<base::Range> row_blocks(int64_t rows, int64_t row_bytes, int64_t max_bytes);
/// Partitions the rows of a slice into ranges whose blocks are at most `max_bytes`, or a single row.
std::vector<base::Range> block_rows(const TensorInfo& tensor, int64_t dim, base::Range slice,
                                    int64_t max_bytes);

void read_block(const SafetensorsFile& file, const RowBlock& block, void* dst);
void write_block(const SafetensorsWriter& file, const RowBlock& block, const void* src);

}  // namespace shardwise::io
