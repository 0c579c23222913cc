#include "shardwise/checkpoint/reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/slices.h"
#include "shardwise/kernels/finite.h"

namespace shardwise::checkpoint {

using Piece = base::ShardRule::Piece;

namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;  // what a core's cache holds until it is looked at

void check_shape(const std::string& path, const std::string& name, const std::vector<int64_t>& found,
                 const std::vector<int64_t>& shape) {
  TORCH_CHECK_VALUE(
      found == shape, path, ": ", name,
      fmt::format(" must have the shape [{}]; got [{}]", fmt::join(shape, ", "), fmt::join(found, ", ")));
}

/// Straight into the memory of `target` where it lies there as in the file.
void read_block(const io::SafetensorsFile& file, const io::Block& block, const at::Tensor& target) {
  const at::ScalarType dtype = tensor_dtype(block.rows.dtype);
  const bool is_straight = target.scalar_type() == dtype && target.is_contiguous();
  const at::Tensor found = is_straight ? target : at::empty(target.sizes(), dtype);
  io::read_block(file, block, found.mutable_data_ptr());
  if (!is_straight) target.copy_(found);
}

/// Into its part of `target`, the rank's whole slice. Returns the first number there that is not finite.
std::optional<double> read_source(const Source& source, int64_t dim, const at::Tensor& target) {
  const base::Range slice{source.file_begin, source.file_begin + source.size};
  const at::Tensor part = target.narrow(dim, source.begin, source.size);
  std::optional<double> first;
  for (const base::Range& rows : io::block_rows(*source.tensor, dim, slice, kBlockBytes)) {
    const at::Tensor place = part.narrow(/*dim=*/0, rows.begin, rows.size());
    read_block(*source.file, io::block_of(*source.tensor, dim, slice, rows), place);
    if (!first) first = kernels::first_not_finite(place);
  }
  return first;
}

}  // namespace

void check_weight(const WeightFiles& files, const std::string& name, const std::vector<int64_t>& shape,
                  model::Holds holds) {
  const auto [path, dtype, found] = files.find(name);
  check_shape(path, name, found, shape);
  if (holds == model::Holds::words) {
    TORCH_CHECK_VALUE(dtype == io::Dtype::I32, path, ": ", name, " must be I32; got ", io::dtype_name(dtype));
    return;
  }
  TORCH_CHECK_VALUE(is_weight_dtype(dtype), path, ": ", name, " must be F32, BF16, F16 or F64; got ",
                    io::dtype_name(dtype));
}

io::SafetensorsFile open_state(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kStateFile;
  TORCH_CHECK_VALUE(base::exists(path), directory.string(), ": must hold ", kStateFile,
                    " to be resumed; got none; --init takes the weights alone");
  return io::SafetensorsFile(path);
}

const io::TensorInfo& find_state(const io::SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), name, tensor.shape, shape);
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::F32 || tensor.dtype == io::Dtype::F64, file.path(), ": ", name,
                    " must be F32 or F64; got ", io::dtype_name(tensor.dtype));
  return tensor;
}

int64_t read_progress(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), name, tensor.shape, {});
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::I64, file.path(), ": ", name, " must be I64; got ",
                    io::dtype_name(tensor.dtype));
  int64_t value = 0;
  file.read_whole(tensor, &value);
  TORCH_CHECK_VALUE(value >= 0 || name == kSeed, file.path(), ": ", name, " must not be negative; got ",
                    value);
  return value;
}

void read_entry(const Entry& entry, const std::vector<Source>& parts, int rank, ValidationErrors& mistakes) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = entry.stored.oriented(entry.local);
  std::vector<Piece> held = entry.stored.held(rank);
  if (base::mutated(base::Mutation::load_first_slice)) {
    for (Piece& piece : held) piece.global_begin = 0;
  }
  for (const Source& source : sources_of(parts, held)) {
    const std::optional<double> found = read_source(source, entry.stored.dim, target);
    mistakes.collect([&] {
      TORCH_CHECK_VALUE(!found, source.file->path(), ": ", entry.name, " must hold finite numbers; got ",
                        found.value_or(0));
    });
  }
}

}  // namespace shardwise::checkpoint
