#include "shardwise/checkpoint/weight_row_reader.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "shardwise/checkpoint/dtype.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/kernels/finite.h"

namespace shardwise::checkpoint {

using at::Tensor;
using base::Range;

namespace {

/// Reads a block of a matrix in a file, in the file's dtype.
Tensor read_rectangle(const TensorSource& source, const Range& rows, const Range& columns) {
  Tensor buffer = at::empty({rows.size(), columns.size()}, tensor_dtype(source.tensor->dtype));
  io::read_block(*source.file, io::block_of(*source.tensor, /*dim=*/1, columns, rows),
                 buffer.mutable_data_ptr());
  return buffer;
}

}  // namespace

std::vector<WeightPart> weight_parts(const WeightFiles& files, const std::vector<model::StoredTensor>& stored,
                                     const config::Config& config, int rank) {
  std::vector<WeightPart> parts;
  for (const model::StoredTensor& tensor : stored) {
    const std::string name = name_in(files, tensor.name, config);
    check_weight(files, name, tensor.shape, tensor.element_type);
    const bool shards_rows = tensor.dim == (tensor.is_transposed ? 1 : 0);
    for (const TensorSource& source : sources_of(files.parts(name, tensor.dim), tensor.held(rank))) {
      parts.push_back({name, source, shards_rows, tensor.is_transposed});
    }
  }
  return parts;
}

Tensor WeightRowReader::read(const Range& rows, int64_t width, at::ScalarType dtype) const {
  Tensor target = at::empty({rows.size(), width}, dtype);
  for (const WeightPart& part : parts_) read_part(part, rows, target);
  return target;
}

Tensor WeightRowReader::read_finite(const Range& rows, int64_t width, at::ScalarType dtype,
                                    ValidationErrors& errors) const {
  Tensor target = at::empty({rows.size(), width}, dtype);
  for (const WeightPart& part : parts_) {
    const Tensor block = read_part(part, rows, target);
    if (block.defined())
      collect_not_finite(kernels::first_nan_or_inf(block), part.source.file->path(), part.name, errors);
  }
  return target;
}

Tensor WeightRowReader::read_part(const WeightPart& part, const Range& rows, const Tensor& target) {
  const TensorSource& source = part.source;
  const Range held{source.begin, source.begin + source.size};
  const Range overlap =
      part.shards_rows ? Range{std::max(rows.begin, held.begin), std::min(rows.end, held.end)} : held;
  if (overlap.empty() || rows.empty()) return {};
  const int64_t shift = source.file_begin - source.begin;
  // In the file along the sharded dim, and along the other.
  const Range sharded{overlap.begin + shift, overlap.end + shift};
  const Range other = part.shards_rows ? Range{0, target.size(1)} : rows;
  const bool is_sharded_first = part.shards_rows != part.is_transposed;
  const Tensor found =
      is_sharded_first ? read_rectangle(source, sharded, other) : read_rectangle(source, other, sharded);
  const int64_t dim = part.shards_rows ? 0 : 1, origin = part.shards_rows ? rows.begin : 0;
  Tensor block = target.narrow(dim, overlap.begin - origin, overlap.size());
  return block.copy_(part.is_transposed ? found.t() : found);
}

}  // namespace shardwise::checkpoint
