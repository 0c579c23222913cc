#include "shardwise/checkpoint/load_packed.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/equal.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/weight_row_reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::checkpoint {

using at::Tensor;
using base::Range;
using config::PackedPart;
using config::Quantization;
using kernels::elements;
using kernels::elements_;

namespace {

constexpr int64_t kPackedBlockBytes = int64_t{4} << 20;

/// Reads this rank's shards of the tensors of one packed weight.
struct PackedWeightReader {
  const WeightFiles& files;
  const parallel::Parameter& weight;
  const config::Config& config;
  int rank;
  ValidationErrors& errors;
  quant::Matrix matrix;

  Quantization quantization() const { return config.quantization->of(weight.name); }

  PackedPart part(const std::string& leaf) const {
    for (const PackedPart& part : config::packed_parts(quantization())) {
      if (part.leaf == leaf) return part;
    }
    TORCH_INTERNAL_ASSERT(false, leaf, " is not a tensor of a packed weight");
  }

  config::ParameterInfo info() const { return model::info_of(weight, config); }

  std::vector<model::StoredTensor> stored(const PackedPart& part) const {
    return model::stored_tensors(info(), part, config);
  }

  std::vector<int64_t> local_shape(const PackedPart& part) const {
    const config::ParameterInfo packed = model::packed_parameter(info(), part, config);
    return packed.rule.local_shape(packed.shape, rank);
  }

  void read(const model::StoredTensor& stored, const Tensor& local) const {
    const std::string name = name_in(files, stored.name, config);
    check_weight(files, name, stored.shape, stored.element_type);
    read_entry({name, stored, local, {0, local.size(0)}}, files.parts(name, stored.dim), rank, errors);
  }

  void read(const PackedPart& part, const Tensor& local) const {
    for (const model::StoredTensor& tensor : stored(part)) read(tensor, local);
  }
};

/// A range of the rank's output features and the int32 words that contain them, packed along the output dim.
struct OutputRange {
  Range outputs;      // in the segment
  int64_t word, row;  // local indices of the first output
  int64_t values_per_word;

  int64_t position(int64_t output) const { return output % values_per_word; }
  int64_t word_of(int64_t output) const {
    return word + output / values_per_word - outputs.begin / values_per_word;
  }
  int64_t row_of(int64_t output) const { return row + output - outputs.begin; }
};

std::vector<OutputRange> output_ranges(const PackedWeightReader& packed) {
  const base::ShardRule& rule = packed.weight.rule;
  const int64_t per_word = packed.quantization().values_per_word();
  if (rule.is_replicated() || rule.dim != 0) return {{{0, packed.weight.global_shape[0]}, 0, 0, per_word}};
  std::vector<OutputRange> ranges;
  int64_t word = 0, row = 0;
  for (const base::Segment& segment : rule.segments) {
    const Range outputs = segment.range(packed.rank);
    ranges.push_back({outputs, word, row, per_word});
    word += base::blocks_of(outputs, per_word).size();
    row += outputs.size();
  }
  return ranges;
}

/// Returns the bit offset of the value at `position` in a word.
int64_t shift_of(int64_t position, const Quantization& q) {
  constexpr int64_t kAwqPositions[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const bool is_awq = q.file_format == Quantization::FileFormat::awq;
  return q.bits * (is_awq ? kAwqPositions[position] : position);
}

void read_zero_points(PackedWeightReader& packed) {
  const Quantization q = packed.quantization();
  const PackedPart part = packed.part(".qzeros");
  const Tensor words = at::empty(packed.local_shape(part), at::kInt);
  packed.read(part, words);
  const auto* word = elements<uint32_t>(words);
  auto* zero_points = elements_<uint8_t>(packed.matrix.zero_points);
  const int64_t groups = words.size(1);
  const auto mask = static_cast<uint32_t>((1 << q.bits) - 1);
  const int offset = q.zero_points_minus_one;
  for (const OutputRange& range : output_ranges(packed)) {
    for (int64_t output = range.outputs.begin; output < range.outputs.end; ++output) {
      const int64_t shift = shift_of(range.position(output), q);
      const uint32_t* from = word + range.word_of(output) * groups;
      uint8_t* to = zero_points + range.row_of(output) * groups;
      for (int64_t group = 0; group < groups; ++group) {
        to[group] = static_cast<uint8_t>(((from[group] >> shift) + offset) & mask);
      }
    }
  }
}

/// Repacks one output from words [width], each with the values of eight outputs, to words along the columns.
void repack_row_(uint32_t* qweight, int64_t first_value, const uint32_t* words, int64_t width,
                 int64_t shift) {
  for (int64_t column = 0; column < width; ++column) {
    const int64_t position = first_value + column;
    qweight[position / 8] |= (words[column] >> shift & 15) << (position % 8 * 4);
  }
}

/// Repacks AWQ's words, which run along the output features, to words along the input features.
void read_awq_qweight(PackedWeightReader& packed) {
  quant::Matrix& m = packed.matrix;
  const PackedPart part = packed.part(".qweight");
  const WeightRowReader source(packed.files, packed.stored(part), packed.config, packed.rank);
  const int64_t first_value = m.columns.begin - m.words().begin * 8, row_words = m.qweight.size(1);
  m.qweight.zero_();
  for (const Range& block : io::row_blocks(packed.local_shape(part)[0], m.width() * 4, kPackedBlockBytes)) {
    const Tensor words = source.read(block, m.width(), at::kInt);
    for (const OutputRange& range : output_ranges(packed)) {
      kernels::for_ranges(range.outputs.size(), m.width(), [&](int64_t begin, int64_t end) {
        for (int64_t output = range.outputs.begin + begin; output < range.outputs.begin + end; ++output) {
          const int64_t word = range.word_of(output);
          if (word < block.begin || word >= block.end) continue;
          repack_row_(elements_<uint32_t>(m.qweight) + range.row_of(output) * row_words, first_value,
                      elements<uint32_t>(words) + (word - block.begin) * m.width(), m.width(),
                      shift_of(range.position(output), packed.quantization()));
        }
      });
    }
  }
}

void check_group(int64_t group, int64_t column, const quant::Matrix& m, const std::string& name) {
  if (m.format.grouping == quant::Grouping::by_column) {
    TORCH_CHECK_VALUE(group >= 0 && group < m.groups().size(), name, ": must list groups below ",
                      m.groups().size(), "; got ", group, " [SW0236]");
    return;
  }
  const int64_t expected = m.format.group_size == 0 ? 0 : (m.columns.begin + column) / m.format.group_size;
  TORCH_CHECK_VALUE(group == expected, name, ": without desc_act column ", m.columns.begin + column,
                    " must be in group ", expected, "; got ", group, " [SW0237]");
}

/// Reads the group index of each column, which must be the same for the segments of a fused weight (q|k|v).
/// Returns whether they are valid.
bool read_groups(PackedWeightReader& packed) {
  quant::Matrix& m = packed.matrix;
  const PackedPart part = packed.part(".g_idx");
  Tensor first;
  bool is_valid = true;
  for (const model::StoredTensor& stored : packed.stored(part)) {
    const Tensor listed = at::empty(packed.local_shape(part), at::kInt);
    packed.read(stored, listed);
    const auto* group = elements<int32_t>(listed);
    if (!first.defined()) first = listed;
    is_valid &= packed.errors.collect([&] {
      for (int64_t column = 0; column < m.width(); ++column)
        check_group(group[column], column, m, stored.name);
      TORCH_CHECK_VALUE(at::equal(first, listed), stored.name,
                        ": must list the same groups as the other weights of its fused projection; got "
                        "different ones [SW0238]");
    });
  }
  if (m.group_index.defined()) m.group_index.copy_(first);
  return is_valid;
}

/// Checks that panels, whose scales are fp16, can hold the scales. They have been checked to be finite.
void check_scales(const Tensor& scales, const std::string& name) {
  const auto* scale = elements<float>(scales);
  for (int64_t i = 0; i < scales.numel(); ++i) {
    TORCH_CHECK_VALUE(static_cast<float>(c10::Half(scale[i])) == scale[i], name,
                      ": scales must be fp16 numbers; got ", scale[i], " [SW0706]");
  }
}

/// Makes room for zero points if the files are not symmetric, though they say so.
void allow_zero_points_(quant::Panels& panels, quant::Matrix& matrix) {
  const bool is_symmetric = matrix.zero_points.eq(matrix.format.symmetric_zero_point()).all().item<bool>();
  if (is_symmetric || panels.format.has_zero_points) return;
  matrix.format.has_zero_points = true;
  panels = quant::Panels::of(matrix.format, panels.rows, panels.in_features, panels.columns, panels.device);
}

}  // namespace

void load_packed(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& config,
                 int rank, ValidationErrors& errors) {
  quant::Panels& panels = *weight.panels;
  PackedWeightReader packed{
      files, weight, config,
      rank,  errors, quant::Matrix::empty(panels.format, panels.rows, panels.in_features, panels.columns)};
  bool is_valid = true;
  if (config.quantization->file_format == Quantization::FileFormat::awq) {
    read_awq_qweight(packed);
  } else {
    packed.read(packed.part(".qweight"), packed.matrix.qweight);
    is_valid = read_groups(packed);
  }
  packed.read(packed.part(".scales"), packed.matrix.scales);
  read_zero_points(packed);
  if (!is_valid) return;
  errors.collect([&] {
    check_scales(packed.matrix.scales, weight.name);
    allow_zero_points_(panels, packed.matrix);
    if (packed.matrix.group_index.defined()) quant::set_groups_(panels, packed.matrix.group_index);
    quant::allocate_(panels);
    quant::pack_rows_(panels, /*begin=*/0, packed.matrix);
  });
}

}  // namespace shardwise::checkpoint
