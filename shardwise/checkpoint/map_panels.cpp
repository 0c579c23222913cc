#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "shardwise/base/clock.h"
#include "shardwise/base/mapped_file.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/checkpoint/panel_tensors.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using at::Tensor;
using kernels::PanelLayout;
using parallel::Parameter;
using quant::Panels;

namespace {

/// Maps the parameters of one rank's file.
class PanelMapper {
 public:
  explicit PanelMapper(const fs::path& path)
      : file_(path), map_(std::make_shared<const base::MappedFile>(path)) {}

  void load(Parameter& parameter) {
    const bool is_packed = file_.contains(parameter.name + kPanels);
    TORCH_CHECK_VALUE(is_packed == (parameter.panels != nullptr), file_.path(), ": ", parameter.name,
                      " must be ", parameter.panels ? "packed" : "a tensor", " for this processor; got ",
                      is_packed ? "panels" : "no panels",
                      "; run shardwise shard --packed on this machine [SW0734]");
    parameter.panels ? map(parameter.name, *parameter.panels) : read(parameter);
  }

  /// Checks that the file has no other tensors. Errors: c10::ValueError.
  void check_all_used() const {
    TORCH_CHECK_VALUE(used_ == file_.tensors().size(), file_.path(), ": must have the ", used_,
                      " tensors of the model in config.json; got ", file_.tensors().size(), " [SW0735]");
  }

  int64_t bytes_read() const { return file_.bytes_read(); }
  int64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  const io::TensorInfo& find(const std::string& name, io::Dtype dtype, const std::vector<int64_t>& shape) {
    const io::TensorInfo& found = file_.find(name);
    TORCH_CHECK_VALUE(found.dtype == dtype && found.shape == shape, file_.path(), ": ", name, " must be ",
                      io::dtype_name(dtype), " of shape ", at::IntArrayRef(shape), "; got ",
                      io::dtype_name(found.dtype), " of shape ", at::IntArrayRef(found.shape), " [SW0736]");
    ++used_;
    return found;
  }

  void read(Parameter& parameter) {
    Tensor value = parameter.value.detach();
    const io::Dtype dtype = file_dtype(value.scalar_type(), parameter.name);
    file_.read_tensor(find(parameter.name, dtype, value.sizes().vec()), value.mutable_data_ptr());
  }

  std::vector<int32_t> read_integers(const std::string& name, int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    file_.read_tensor(find(name, io::Dtype::I32, {count}), values.data());
    return values;
  }

  void map(const std::string& name, Panels& panels) {
    read_layout(name + kLayout, panels);
    read_column_order(name + kColumnOrder, panels);
    const int64_t count = PanelLayout::panels(panels.rows), bytes = panels.layout.panel_bytes();
    const io::TensorInfo& found = find(name + kPanels, io::Dtype::I64, {count, bytes / kPanelWordBytes});
    TORCH_CHECK_VALUE(found.begin % kPanelAlignment == 0 && found.end <= map_->size(), file_.path(), ": ",
                      found.name, " must begin at a multiple of ", kPanelAlignment, " bytes; got ",
                      found.begin, " [SW0737]");
    void* data = const_cast<uint8_t*>(map_->data() + found.begin);  // only read: the mapping refuses writes
    panels.data = at::from_blob(
        data, {count, bytes}, [map = map_](void*) {}, at::kByte);
    mapped_bytes_ += found.bytes();
  }

  /// Groups in order have the layout that follows from the config, but for zero points; others have any.
  void read_layout(const std::string& name, Panels& panels) {
    const std::vector<int64_t>& shape = file_.find(name).shape;
    const std::vector<int32_t> values = read_integers(name, shape.size() == 1 ? shape[0] : 2);
    check_layout(values.size() >= 2 && values[0] == panels.format.bits && (values[1] & ~1) == 0, name);
    const std::vector<int32_t> lines(values.begin() + 2, values.end());
    // A line has a column at least.
    const bool are_possible =
        std::ranges::all_of(lines, [&](int32_t count) { return count > 0 && count <= panels.width(); }) &&
        std::accumulate(lines.begin(), lines.end(), int64_t{0}) <= panels.width();
    check_layout(panels.format.grouping == quant::Grouping::in_order ? lines == lines_of_groups(panels.layout)
                                                                     : are_possible,
                 name);
    std::vector<int64_t> columns;
    for (const int32_t count : lines) columns.push_back(count * (32 / panels.format.bits));
    panels.format.has_zero_points = values[1] != 0;
    panels.layout = PanelLayout(panels.format.bits, panels.format.has_zero_points, columns);
  }

  /// Every column must be once in the order: products read the input by it.
  void read_column_order(const std::string& name, Panels& panels) {
    const int64_t columns = panels.layout.columns(), width = panels.width();
    panels.column_order = Tensor();
    if (!file_.contains(name)) {
      check_columns(columns == width, name);
      return;
    }
    const std::vector<int32_t> order = read_integers(name, columns);
    std::vector<int64_t> count(static_cast<size_t>(width) + 1);
    for (const int32_t column : order) {
      check_columns(column >= 0 && column <= width, name);
      ++count[size_t(column)];
    }
    count.back() = 1;  // padding, any number of times
    check_columns(std::ranges::all_of(count, [](int64_t times) { return times == 1; }), name);
    panels.column_order = at::empty({columns}, at::kInt);
    std::ranges::copy(order, panels.column_order.mutable_data_ptr<int32_t>());
  }

  void check_layout(bool is_valid, const std::string& name) const {
    TORCH_CHECK_VALUE(is_valid, file_.path(), ": ", name,
                      " must be the layout of the weight in config.json; got another one [SW0738]");
  }

  void check_columns(bool is_valid, const std::string& name) const {
    TORCH_CHECK_VALUE(is_valid, file_.path(), ": ", name,
                      " must have every column of the weight once; got others [SW0739]");
  }

  io::SafetensorsFile file_;
  std::shared_ptr<const base::MappedFile> map_;
  size_t used_ = 0;
  int64_t mapped_bytes_ = 0;
};

}  // namespace

LoadStats map_panel_files(const fs::path& directory, const model::DecoderWeights& weights) {
  const base::Stopwatch watch;
  const comm::Group& group = weights.group();
  LoadStats stats{};
  ValidationErrors errors;
  errors.collect([&] {
    PanelMapper mapper(directory / panel_file_name(group.rank(), group.size()));
    for (const nn::UsedParameter& used : weights.held_parameters()) mapper.load(*used.parameter);
    const bool has_all = weights.used_parameters().size() == weights.all_parameters().size();
    if (has_all) mapper.check_all_used();  // a pipeline stage has some
    stats = {mapper.bytes_read(), 0, mapper.mapped_bytes()};
  });
  errors.raise_on_any_rank(group);
  stats.seconds = watch.seconds();
  return stats;
}

}  // namespace shardwise::checkpoint
