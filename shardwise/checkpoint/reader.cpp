#include "shardwise/checkpoint/reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/family.h"

namespace shardwise::checkpoint {

using Piece = base::ShardRule::Piece;

namespace {

constexpr int64_t kBufferBytes = int64_t{8} << 20;

void check_shape(const std::string& path, const io::TensorInfo& tensor, const std::vector<int64_t>& shape) {
  TORCH_CHECK_VALUE(tensor.shape == shape, path, ": ", tensor.name,
                    fmt::format(" must have the shape [{}]; got [{}]", fmt::join(shape, ", "),
                                fmt::join(tensor.shape, ", ")));
}

/// Pieces that follow each other in the file and in the slice, as one: a rank that holds all reads all at
/// once.
std::vector<Piece> joined(const std::vector<Piece>& pieces) {
  std::vector<Piece> runs;
  for (const Piece& piece : pieces) {
    const bool follows = !runs.empty() && runs.back().global_begin + runs.back().size == piece.global_begin &&
                         runs.back().local_begin + runs.back().size == piece.local_begin;
    if (follows) {
      runs.back().size += piece.size;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

/// A few rows at a time, for what has another dtype or order in memory than in the file.
void read_converted(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim,
                    const base::Range& slice, const at::Tensor& target) {
  for (const base::Range& rows : io::block_rows(tensor, dim, slice, kBufferBytes)) {
    const at::Tensor part = target.narrow(/*dim=*/0, rows.begin, rows.size());
    at::Tensor buffer = at::empty(part.sizes(), tensor_dtype(tensor.dtype));
    io::read_block(file, io::block_of(tensor, dim, slice, rows), buffer.mutable_data_ptr());
    part.copy_(buffer);
  }
}

/// `target` is the rank's whole slice, `piece` a part of it. Straight into its memory where it lies there as
/// in the file.
void read_slice(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim,
                const Piece& piece, at::Tensor target) {
  if (target.scalar_type() == tensor_dtype(tensor.dtype) && target.is_contiguous()) {
    io::read_piece(file, tensor, dim, piece, target.size(dim), target.mutable_data_ptr());
  } else {
    read_converted(file, tensor, dim, {piece.global_begin, piece.global_begin + piece.size},
                   target.narrow(dim, piece.local_begin, piece.size));
  }
}

}  // namespace

std::string name_in(const io::SafetensorsFolder& files, const std::string& name,
                    const model::Config& config) {
  const std::string& prefix = model::family_of(config.model_type).optional_prefix;
  if (prefix.empty() || !name.starts_with(prefix) || files.contains(name)) return name;
  const std::string shorter = name.substr(prefix.size());
  return files.contains(shorter) ? shorter : name;
}

void check_weight(const io::SafetensorsFolder::Place& place, const std::vector<int64_t>& shape) {
  const auto& [file, tensor] = place;
  check_shape(file->path(), *tensor, shape);
  TORCH_CHECK_VALUE(is_weight_dtype(tensor->dtype), file->path(), ": ", tensor->name,
                    " must be F32, BF16, F16 or F64; got ", io::dtype_name(tensor->dtype));
}

io::SafetensorsFile open_state(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kStateFile;
  TORCH_CHECK_VALUE(base::exists(path), folder.string(), ": must hold ", kStateFile,
                    " to be resumed; got none; --init takes the weights alone");
  return io::SafetensorsFile(path);
}

const io::TensorInfo& find_state(const io::SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), tensor, shape);
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::F32 || tensor.dtype == io::Dtype::F64, file.path(), ": ", name,
                    " must be F32 or F64; got ", io::dtype_name(tensor.dtype));
  return tensor;
}

int64_t read_progress(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), tensor, {});
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::I64, file.path(), ": ", name, " must be I64; got ",
                    io::dtype_name(tensor.dtype));
  int64_t value = 0;
  file.read_whole(tensor, &value);
  TORCH_CHECK_VALUE(value >= 0 || name == kSeed, file.path(), ": ", name, " must not be negative; got ",
                    value);
  return value;
}

void read_entry(const Entry& entry, const io::SafetensorsFile& file, const io::TensorInfo& tensor, int rank) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = entry.stored.oriented(entry.local);
  for (Piece piece : joined(entry.stored.held(rank))) {
    if (base::mutated(base::Mutation::load_first_slice)) piece.global_begin = 0;
    read_slice(file, tensor, entry.stored.dim, piece, target);
  }
}

}  // namespace shardwise::checkpoint
