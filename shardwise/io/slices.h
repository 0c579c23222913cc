// A slice along one dim of a row-major tensor in a file <-> a contiguous buffer, by as few reads or writes as
// the shape allows. Which slice a rank has, base::ShardRule says.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/io/writer.h"

namespace shardwise::io {

/// A run of bytes that is contiguous on both sides; offsets count from the tensor's and the buffer's first
/// byte.
struct Run {
  int64_t file_offset, buffer_offset, bytes;
  bool operator==(const Run&) const = default;
};

/// Calls `visit` for each run of the indices [piece.global_begin, + piece.size) along `dim` of a tensor of
/// `shape`, which lie at [piece.local_begin, + piece.size) along `dim` of a buffer with `local_size` indices
/// there. Cost: one run when the piece is the whole of both or all dims before `dim` are 1; else one per
/// index of those. Errors: c10::ValueError when dim or piece lie outside the tensor or the buffer.
void for_each_run(const std::vector<int64_t>& shape, int64_t itemsize, int64_t dim,
                  const base::ShardRule::Piece& piece, int64_t local_size,
                  const std::function<void(const Run&)>& visit);

/// Writes a piece of a tensor from its place in `src`, a buffer of `local_size` indices along `dim`.
void write_piece(const SafetensorsWriter& file, const TensorInfo& tensor, int64_t dim,
                 const base::ShardRule::Piece& piece, int64_t local_size, const void* src);

/// Some rows of a slice along `dim`; a row is all that has one index of the first dim. What holds a block in
/// memory holds nothing else.
struct Block {
  TensorInfo rows;  // those rows of the tensor, as a tensor of its own
  int64_t dim;
  base::ShardRule::Piece piece;  // of `rows`
  int64_t bytes() const;         // of the slice
};

/// The rows [rows.begin, rows.end) of the slice [slice.begin, slice.end) along `dim` of a tensor of one dim
/// or more; along dim 0 they count from the slice's first. Errors: c10::ValueError when they lie outside.
Block block_of(const TensorInfo& tensor, int64_t dim, base::Range slice, base::Range rows);

/// All rows of such a slice in runs, each a block of at most `most_bytes` or a single row.
std::vector<base::Range> block_rows(const TensorInfo& tensor, int64_t dim, base::Range slice,
                                    int64_t most_bytes);

void read_block(const SafetensorsFile& file, const Block& block, void* dst);
void write_block(const SafetensorsWriter& file, const Block& block, const void* src);

}  // namespace shardwise::io
