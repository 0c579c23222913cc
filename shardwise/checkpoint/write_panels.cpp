#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/atomic_directory.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/checkpoint/panel_tensors.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/io/writer.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using at::Tensor;
using parallel::Parameter;
using quant::Panels;

namespace {

constexpr int64_t kWriteBytes = int64_t{8} << 20;

/// A tensor to be written.
struct Written {
  io::TensorSpec spec;
  Tensor value;  // contiguous
};

Tensor layout_tensor(const Panels& panels) {
  std::vector<int32_t> values = lines_of_groups(panels.layout);
  values.insert(values.begin(), {static_cast<int32_t>(panels.format.bits), panels.format.has_zero_points});
  const Tensor tensor = at::empty({std::ssize(values)}, at::kInt);
  std::ranges::copy(values, tensor.mutable_data_ptr<int32_t>());
  return tensor;
}

void append(std::vector<Written>& tensors, const Parameter& parameter) {
  if (!parameter.panels) {
    const Tensor value = parameter.value.detach();
    const io::Dtype dtype = file_dtype(value.scalar_type(), parameter.name);
    tensors.push_back({{parameter.name, dtype, value.sizes().vec()}, value.contiguous()});
    return;
  }
  const Panels& panels = *parameter.panels;
  const std::vector<int64_t> words{panels.data.size(0), panels.data.size(1) / kPanelWordBytes};
  tensors.push_back({{parameter.name + kPanels, io::Dtype::I64, words}, panels.data});
  const auto append_integers = [&](const char* suffix, const Tensor& value) {
    tensors.push_back({{parameter.name + suffix, io::Dtype::I32, value.sizes().vec()}, value});
  };
  append_integers(kLayout, layout_tensor(panels));
  if (panels.column_order.defined()) append_integers(kColumnOrder, panels.column_order);
}

std::vector<Written> tensors_of(const model::DecoderWeights& weights) {
  std::vector<Written> tensors;
  for (const nn::UsedParameter& used : weights.used_parameters()) append(tensors, *used.parameter);
  return tensors;
}

io::FileLayout layout_of(const std::vector<Written>& tensors) {
  std::vector<io::TensorSpec> specs;
  for (const Written& tensor : tensors) specs.push_back(tensor.spec);
  return io::plan_file(specs, {{"format", "pt"}}, kPanelAlignment);
}

/// Returns the bytes of the tensors.
int64_t write_file(const fs::path& path, const std::vector<Written>& tensors, const OnProgress& on_progress) {
  const auto file = io::SafetensorsWriter::create(path, layout_of(tensors));
  const int64_t all_bytes = file.layout().total_bytes - file.layout().header_bytes;
  int64_t done = 0;
  for (const Written& tensor : tensors) {
    const io::TensorInfo& to = file.layout().find(tensor.spec.name);
    const auto* from = static_cast<const char*>(tensor.value.const_data_ptr());
    for (int64_t begin = 0; begin < to.bytes(); begin += kWriteBytes) {
      const int64_t bytes = std::min(kWriteBytes, to.bytes() - begin);
      file.write(to, begin, bytes, from + begin);
      on_progress(done += bytes, all_bytes);
    }
  }
  file.sync();
  on_progress(all_bytes, all_bytes);  // the last chance to cancel
  return all_bytes;
}

}  // namespace

WriteSummary write_panel_files(const fs::path& in, const fs::path& out, const model::DecoderWeights& weights,
                               const PanelOptions& options, const OnProgress& on_progress) {
  const comm::Group& group = weights.group();
  const std::string op = "shard";
  std::optional<AtomicDirectory> directory;  // on rank 0
  all_ranks_or_throw(group, op, [&] {
    if (group.rank() > 0) return;
    directory.emplace(op, new_target_path(op, out));
    copy_auxiliary_files(in, directory->path());
    write_panel_index(directory->path(), options);
  });
  const fs::path path = comm::first_text(directory ? directory->path().string() : "", group);
  const std::vector<Written> tensors = tensors_of(weights);
  int64_t bytes = 0;
  all_ranks_or_throw(group, op, [&] {
    bytes = write_file(path / panel_file_name(group.rank(), group.size()), tensors, on_progress);
  });
  all_ranks_or_throw(group, op, [&] {
    if (directory) directory->publish();
  });
  WriteSummary summary{{}, std::ssize(tensors), 0};
  for (int rank = 0; rank < group.size(); ++rank)
    summary.files.push_back(panel_file_name(rank, group.size()));
  for (const int64_t of_rank : comm::gather_values(bytes, group)) summary.bytes += of_rank;
  return summary;
}

}  // namespace shardwise::checkpoint
