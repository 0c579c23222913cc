#include "shardwise/checkpoint/reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/family.h"

namespace shardwise::checkpoint {
namespace {

void check_shape(const std::string& path, const io::TensorInfo& tensor, const std::vector<int64_t>& shape) {
  TORCH_CHECK_VALUE(tensor.shape == shape, path, ": ", tensor.name,
                    fmt::format(" must have the shape [{}]; got [{}]", fmt::join(shape, ", "),
                                fmt::join(tensor.shape, ", ")));
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
  const model::StoredTensor& stored = entry.stored;
  const at::Tensor oriented = stored.oriented(entry.local);
  for (const auto& [global_begin, local_begin, size] : stored.held(rank)) {
    at::Tensor target = oriented.narrow(stored.dim, local_begin, size);
    at::Tensor read = at::empty(target.sizes(), tensor_dtype(tensor.dtype));
    const int64_t begin = base::mutated(base::Mutation::load_first_slice) ? 0 : global_begin;
    io::read_piece(file, tensor, stored.dim, {begin, /*local_begin=*/0, size}, size, read.mutable_data_ptr());
    target.copy_(read);
  }
}

}  // namespace shardwise::checkpoint
