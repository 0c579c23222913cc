#include "shardwise/checkpoint/quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/atomic_directory.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/load_quantized.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/weight_row_reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/names.h"
#include "shardwise/quant/quantize.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using at::Tensor;
using base::Range;
using config::Config;
using config::PackedPart;
using config::ParameterInfo;
using model::StoredTensor;

namespace {

constexpr int64_t kQuantizedBlockBytes = int64_t{16} << 20;  // of fp32

/// A weight of the input and the tensors of the output that represent it.
struct PlannedWeight {
  StoredTensor dense;
  Range rows;  // of the parameter [out, in], which may be fused from several such tensors
  int64_t in_features;
  quant::Format format;
  std::vector<StoredTensor> parts;
};

struct Plan {
  std::vector<PlannedWeight> weights;
  std::vector<StoredTensor> copied;

  io::FileLayout layout(const WeightFiles& files, const Config& config) const {
    std::vector<io::TensorSpec> specs;
    for (const PlannedWeight& weight : weights) {
      for (const StoredTensor& part : weight.parts) {
        specs.push_back(
            {part.name,
             part.element_type == config::ElementType::packed_int32 ? io::Dtype::I32 : io::Dtype::F16,
             part.shape});
      }
    }
    for (const StoredTensor& stored : copied) {
      const auto full = files.find(name_in(files, stored.name, config));
      specs.push_back({stored.name, full.dtype, full.shape});
    }
    return io::plan_file(specs, {{"format", "pt"}});
  }
};

/// Returns the rows of the parameter that one of its stored tensors contains.
Range rows_of(const StoredTensor& stored, int64_t out_features) {
  if (stored.rule.dim != 0) return {0, out_features};
  const auto pieces = stored.held(/*rank=*/0);
  return {pieces.front().local_begin, pieces.back().local_begin + pieces.back().size};
}

void append_weight(Plan& plan, const ParameterInfo& parameter, const Config& from, const Config& to) {
  const std::vector<StoredTensor> dense = model::stored_tensors(parameter, from);
  const config::Quantization how = to.quantization->of(parameter.name);
  for (size_t i = 0; i < dense.size(); ++i) {
    PlannedWeight weight{dense[i],
                         rows_of(dense[i], parameter.shape[0]),
                         parameter.shape[1],
                         {how.bits, how.group_size},
                         /*parts=*/{}};
    for (const PackedPart& part : config::packed_parts(how)) {
      weight.parts.push_back(model::stored_tensors(parameter, part, to).at(i));
    }
    plan.weights.push_back(std::move(weight));
  }
}

Plan plan_for(const Config& from, const Config& to) {
  Plan plan;
  const config::ParameterTable quantized(to);
  for (const ParameterInfo& parameter : config::ParameterTable(from)) {
    if (quantized.at(parameter.name).format == config::StorageFormat::packed) {
      append_weight(plan, parameter, from, to);
      continue;
    }
    for (StoredTensor& stored : model::stored_tensors(parameter, from))
      plan.copied.push_back(std::move(stored));
  }
  return plan;
}

class Writer {
 public:
  Writer(const WeightFiles& files, const Config& from, const Config& to, const io::SafetensorsWriter& file,
         TensorCopier& copier)
      : files_(files), from_(from), quantization_(*to.quantization), file_(file), copier_(copier) {}

  void write(const PlannedWeight& weight) {
    const WeightRowReader source(files_, {weight.dense}, from_, /*rank=*/0);
    for (const Range& rows :
         io::row_blocks(weight.rows.size(), weight.in_features * 4, kQuantizedBlockBytes)) {
      const quant::Matrix m = quantized(source, weight, rows);
      put(weight, ".qweight", m.qweight, rows);
      put(weight, ".scales", m.scales.to(at::kHalf), rows);
    }
    put_full(weight, ".qzeros", symmetric_zero_points(weight));
    put_full(weight, ".g_idx", groups(weight));
  }

  void copy(const StoredTensor& stored) {
    const auto parts = files_.parts(name_in(files_, stored.name, from_), stored.dim);
    for (const TensorSource& from : sources_of(parts, {{0, 0, stored.shape.at(stored.dim)}})) {
      copier_.copy(from, file_, file_.layout().find(stored.name), stored.dim);
    }
  }

 private:
  quant::Matrix quantized(const WeightRowReader& source, const PlannedWeight& weight,
                          const Range& rows) const {
    const Range all{0, weight.in_features};
    const Tensor w = source.read({weight.rows.begin + rows.begin, weight.rows.begin + rows.end},
                                 weight.in_features, at::kFloat);
    const Tensor maxima = quant::group_maxima(w, weight.format, weight.in_features, all);
    quant::check_maxima(maxima, weight.format, weight.dense.name);
    quant::Matrix m = quant::Matrix::empty(weight.format, rows.size(), weight.in_features, all);
    quant::quantize_rows_(m, /*begin=*/0, w, maxima);
    return m;
  }

  const io::TensorInfo& target(const PlannedWeight& weight, const std::string& leaf) const {
    for (const StoredTensor& part : weight.parts) {
      if (part.name.ends_with(leaf)) return file_.layout().find(part.name);
    }
    TORCH_INTERNAL_ASSERT(false, leaf, " is not a tensor of a packed weight");
  }

  /// Writes rows of `part` [out, n], which are columns in the file.
  void put(const PlannedWeight& weight, const std::string& leaf, const Tensor& part, const Range& rows) {
    const io::TensorInfo& to = target(weight, leaf);
    const Tensor transposed = part.t().contiguous();
    io::write_block(file_, io::block_of(to, /*dim=*/1, rows, {0, to.shape[0]}), transposed.const_data_ptr());
    copier_.report_written(static_cast<int64_t>(transposed.nbytes()));
  }

  void put_full(const PlannedWeight& weight, const std::string& leaf, const Tensor& part) {
    file_.write_tensor(target(weight, leaf), part.const_data_ptr());
    copier_.report_written(static_cast<int64_t>(part.nbytes()));
  }

  /// Returns words filled with the symmetric zero point, in the encoding of the file's version.
  Tensor symmetric_zero_points(const PlannedWeight& weight) const {
    uint32_t word = 0;
    const auto zero =
        static_cast<uint32_t>(weight.format.symmetric_zero_point() - quantization_.zero_points_minus_one);
    for (int64_t i = 0; i < weight.format.values_per_word(); ++i) word |= zero << (i * weight.format.bits);
    return at::full(target(weight, ".qzeros").shape, static_cast<int32_t>(word), at::kInt);
  }

  Tensor groups(const PlannedWeight& weight) const {
    const Tensor listed = at::empty({weight.in_features}, at::kInt);
    auto* group = listed.mutable_data_ptr<int32_t>();
    const int64_t size = weight.format.group_size == 0 ? weight.in_features : weight.format.group_size;
    for (int64_t i = 0; i < weight.in_features; ++i) group[i] = static_cast<int32_t>(i / size);
    return listed;
  }

  const WeightFiles& files_;
  const Config& from_;
  const config::Quantization& quantization_;
  const io::SafetensorsWriter& file_;
  TensorCopier& copier_;
};

/// Returns the config of the quantized model. Errors: c10::ValueError if the format does not support its
/// sizes.
Config quantized_config(const Config& from, const config::Quantization& how) {
  TORCH_CHECK_VALUE(!from.quantization, "quantize: the input weights must not be quantized; got ",
                    from.quantization ? from.quantization->text() : "", " [SW0094]");
  Config to = from;
  to.quantization = how;
  config::check_quantization(to, "quantize");
  return to;
}

}  // namespace

WriteSummary quantize(const fs::path& in, const fs::path& out, const config::Quantization& how,
                      const OnProgress& on_progress) {
  const fs::path target = new_target_path("quantize", out);
  const Config from = config::load_config(in), to = quantized_config(from, how);
  const WeightFiles files(in, from);
  check_weights(files, from);
  const Plan plan = plan_for(from, to);
  const io::FileLayout layout = plan.layout(files, from);
  TensorCopier copier(on_progress);
  copier.add_to_total(layout);
  AtomicDirectory directory("quantize", target);
  copy_auxiliary_files(in, directory.path());
  base::write_text(directory.path() / kConfigFile,
                   config::with_quantization(base::read_text(in / kConfigFile), how));
  const auto file = io::SafetensorsWriter::create(directory.path() / kWeightsFile, layout);
  Writer writer(files, from, to, file, copier);
  for (const PlannedWeight& weight : plan.weights) writer.write(weight);
  for (const StoredTensor& stored : plan.copied) writer.copy(stored);
  file.sync();
  on_progress(copier.all_bytes(), copier.all_bytes());  // the last chance to cancel
  directory.publish();
  return {{kWeightsFile}, std::ssize(layout.tensors), copier.all_bytes()};
}

}  // namespace shardwise::checkpoint
