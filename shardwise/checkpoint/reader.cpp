#include "shardwise/checkpoint/reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/slices.h"
#include "shardwise/kernels/finite.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::checkpoint {

using Piece = base::ShardRule::Piece;

namespace {

constexpr int64_t kBlockBytes = int64_t{1}
                                << 20;  // stays in a core's cache until it is checked for NaN or Inf

void check_shape(const std::string& path, const std::string& name, const std::vector<int64_t>& found,
                 const std::vector<int64_t>& shape) {
  TORCH_CHECK_VALUE(found == shape, path, ": ", name,
                    fmt::format(" must have the shape [{}]; got [{}] [SW0234]", fmt::join(shape, ", "),
                                fmt::join(found, ", ")));
}

/// Reads directly into `target` if it is on the CPU in the file's dtype and order, otherwise through a
/// buffer. Returns the first NaN or Inf.
std::optional<double> read_block(const io::SafetensorsFile& file, const io::RowBlock& block,
                                 const at::Tensor& target) {
  const at::ScalarType dtype = tensor_dtype(block.rows.dtype);
  const bool is_direct = target.is_cpu() && target.scalar_type() == dtype && target.is_contiguous();
  const at::Tensor found = is_direct ? target : at::empty(target.sizes(), dtype);
  io::read_block(file, block, found.mutable_data_ptr());
  if (!is_direct) target.copy_(found);
  return kernels::first_nan_or_inf(target.is_cpu() ? target : found);
}

/// Reads a part of `target`, the rank's shard. Returns the first NaN or Inf in it.
std::optional<double> read_source(const TensorSource& source, int64_t dim, const at::Tensor& target) {
  const base::Range slice{source.file_begin, source.file_begin + source.size};
  const at::Tensor part = target.narrow(dim, source.begin, source.size);
  const std::vector<base::Range> blocks = io::block_rows(*source.tensor, dim, slice, kBlockBytes);
  std::vector<std::optional<double>> found(blocks.size());
  kernels::for_ranges(std::ssize(blocks), kBlockBytes, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // each thread has its own mode
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const at::Tensor block = part.narrow(/*dim=*/0, blocks[i].begin, blocks[i].size());
      found[i] = read_block(*source.file, io::block_of(*source.tensor, dim, slice, blocks[i]), block);
    }
  });
  const auto first = std::ranges::find_if(found, [](const auto& value) { return value.has_value(); });
  return first == found.end() ? std::nullopt : *first;
}

}  // namespace

void check_weight(const WeightFiles& files, const std::string& name, const std::vector<int64_t>& shape,
                  config::ElementType element_type) {
  const auto [path, dtype, found] = files.find(name);
  check_shape(path, name, found, shape);
  if (element_type == config::ElementType::packed_int32) {
    TORCH_CHECK_VALUE(dtype == io::Dtype::I32, path, ": ", name, " must be I32; got ", io::dtype_name(dtype),
                      " [SW0235]");
    return;
  }
  TORCH_CHECK_VALUE(is_weight_dtype(dtype), path, ": ", name, " must be F32, BF16, F16 or F64; got ",
                    io::dtype_name(dtype), " [SW0241]");
}

io::SafetensorsFile open_state(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kStateFile;
  TORCH_CHECK_VALUE(base::exists(path), directory.string(), ": must contain ", kStateFile,
                    " to be resumed; got none; --init loads the weights alone [SW0232]");
  return io::SafetensorsFile(path);
}

const io::TensorInfo& find_state(const io::SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), name, tensor.shape, shape);
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::F32 || tensor.dtype == io::Dtype::F64, file.path(), ": ", name,
                    " must be F32 or F64; got ", io::dtype_name(tensor.dtype), " [SW0242]");
  return tensor;
}

int64_t read_progress(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& tensor = file.find(name);
  check_shape(file.path(), name, tensor.shape, {});
  TORCH_CHECK_VALUE(tensor.dtype == io::Dtype::I64, file.path(), ": ", name, " must be I64; got ",
                    io::dtype_name(tensor.dtype), " [SW0243]");
  int64_t value = 0;
  file.read_tensor(tensor, &value);
  TORCH_CHECK_VALUE(value >= 0 || name == kSeed, file.path(), ": ", name, " must not be negative; got ",
                    value, " [SW0244]");
  return value;
}

void collect_not_finite(std::optional<double> found, const std::string& path, const std::string& name,
                        ValidationErrors& errors) {
  errors.collect([&] {
    TORCH_CHECK_VALUE(!found, path, ": ", name, " must be finite; got ", found.value_or(0), " [SW0240]");
  });
}

void read_rows(const Entry& entry, const io::SafetensorsFile& file, const io::TensorInfo& tensor, int rank,
               ValidationErrors& errors) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, columns, part] : parts_of(entry, entry.stored.held(rank))) {
    const io::RowBlock block = io::rectangle_of(tensor, rows, columns);
    const TensorSource source{&file, &block.rows, block.piece.global_begin, /*begin=*/0, block.piece.size};
    collect_not_finite(read_source(source, block.dim, part), file.path(), entry.name, errors);
  }
}

void read_entry(const Entry& entry, const std::vector<TensorSource>& parts, int rank,
                ValidationErrors& errors) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = entry.stored.oriented(entry.local);
  const std::vector<Piece> held = entry.stored.held(rank);
  for (const TensorSource& source : sources_of(parts, held)) {
    collect_not_finite(read_source(source, entry.stored.dim, target), source.file->path(), entry.name,
                       errors);
  }
}

}  // namespace shardwise::checkpoint
