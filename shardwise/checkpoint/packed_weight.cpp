#include "shardwise/checkpoint/packed_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sort.h>

#include <algorithm>

#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/weight_rows.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::checkpoint {

using at::Tensor;
using base::Range;
using kernels::elements;
using kernels::elements_;
using model::PackedPart;
using model::Quantization;

namespace {

constexpr int64_t kPackedBlockBytes = int64_t{4} << 20;

/// One weight's tensors, and what this rank has of them.
struct PackedWeight {
  const WeightFiles& files;
  const parallel::Parameter& weight;
  const model::Config& config;
  int rank;
  ValidationErrors& mistakes;

  const Quantization& quantization() const { return *config.quantization; }
  quant::Matrix& matrix() const { return *weight.quantized; }

  PackedPart part(const std::string& leaf) const {
    for (const PackedPart& part : model::packed_parts(quantization())) {
      if (part.leaf == leaf) return part;
    }
    TORCH_INTERNAL_ASSERT(false, leaf, " is no part of a weight");
  }

  std::vector<model::StoredTensor> stored(const PackedPart& part) const {
    return model::stored_tensors(weight, part, config);
  }

  std::vector<int64_t> local_shape(const PackedPart& part) const {
    const parallel::Parameter packed = model::packed_parameter(weight, part, config);
    return packed.rule.local_shape(packed.global_shape, rank);
  }

  void read(const model::StoredTensor& stored, const Tensor& local) const {
    const std::string name = name_in(files, stored.name, config);
    check_weight(files, name, stored.shape, stored.holds);
    read_entry({name, stored, local}, files.parts(name, stored.dim), rank, mistakes);
  }

  void read(const PackedPart& part, const Tensor& local) const {
    for (const model::StoredTensor& tensor : stored(part)) read(tensor, local);
  }
};

/// A run of the rank's outputs and the words that hold them beside others', along the outputs' dim.
struct OutputRun {
  Range outputs;      // of a segment
  int64_t word, row;  // the first's, as the rank keeps them
  int64_t codes_per_word;

  int64_t place(int64_t output) const { return output % codes_per_word; }
  int64_t word_of(int64_t output) const {
    return word + output / codes_per_word - outputs.begin / codes_per_word;
  }
  int64_t row_of(int64_t output) const { return row + output - outputs.begin; }
};

std::vector<OutputRun> output_runs(const PackedWeight& packed) {
  const base::ShardRule& rule = packed.weight.rule;
  const int64_t per_word = packed.quantization().codes_per_word();
  if (rule.is_replicated() || rule.dim != 0) return {{{0, packed.weight.global_shape[0]}, 0, 0, per_word}};
  std::vector<OutputRun> runs;
  int64_t word = 0, row = 0;
  for (const base::Segment& segment : rule.segments) {
    const Range outputs = segment.range(packed.rank);
    runs.push_back({outputs, word, row, per_word});
    word += base::blocks_of(outputs, per_word).size();
    row += outputs.size();
  }
  return runs;
}

/// Where in a word the bits of its output number `place` begin.
int64_t shift_of(int64_t place, const Quantization& q) {
  constexpr int64_t kAwqPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const bool is_awq =
      q.files == Quantization::Files::awq && !base::mutated(base::Mutation::awq_outputs_in_order);
  return q.bits * (is_awq ? kAwqPlaces[place] : place);
}

void read_zeros(const PackedWeight& packed) {
  const Quantization& q = packed.quantization();
  const PackedPart part = packed.part(".qzeros");
  const Tensor words = at::empty(packed.local_shape(part), at::kInt);
  packed.read(part, words);
  const auto* word = elements<uint32_t>(words);
  auto* zeros = elements_<uint8_t>(packed.matrix().zeros);
  const int64_t groups = words.size(1);
  const auto mask = static_cast<uint32_t>((1 << q.bits) - 1);
  const int less_one = q.zeros_less_one && !base::mutated(base::Mutation::zeros_as_stored);
  for (const OutputRun& run : output_runs(packed)) {
    for (int64_t output = run.outputs.begin; output < run.outputs.end; ++output) {
      const int64_t shift = shift_of(run.place(output), q);
      const uint32_t* from = word + run.word_of(output) * groups;
      uint8_t* to = zeros + run.row_of(output) * groups;
      for (int64_t group = 0; group < groups; ++group) {
        to[group] = static_cast<uint8_t>(((from[group] >> shift) + less_one) & mask);
      }
    }
  }
}

/// One output's codes, of words [width] that each hold it beside seven others.
void repack_row_(uint32_t* codes, int64_t first_code, const uint32_t* words, int64_t width, int64_t shift) {
  for (int64_t column = 0; column < width; ++column) {
    const int64_t place = first_code + column;
    codes[place / 8] |= (words[column] >> shift & 15) << (place % 8 * 4);
  }
}

/// AWQ's words lie along the outputs, ours along the input features.
void read_awq_codes(const PackedWeight& packed) {
  quant::Matrix& m = packed.matrix();
  const PackedPart part = packed.part(".qweight");
  const WeightRows source(packed.files, packed.stored(part), packed.config, packed.rank);
  const int64_t first_code = m.columns.begin - m.words().begin * 8, row_words = m.codes.size(1);
  m.codes.zero_();
  for (const Range& block : row_blocks(packed.local_shape(part)[0], m.width() * 4, kPackedBlockBytes)) {
    const Tensor words = source.read(block, m.width(), at::kInt);
    for (const OutputRun& run : output_runs(packed)) {
      kernels::for_ranges(run.outputs.size(), m.width(), [&](int64_t begin, int64_t end) {
        for (int64_t output = run.outputs.begin + begin; output < run.outputs.begin + end; ++output) {
          const int64_t word = run.word_of(output);
          if (word < block.begin || word >= block.end) continue;
          repack_row_(elements_<uint32_t>(m.codes) + run.row_of(output) * row_words, first_code,
                      elements<uint32_t>(words) + (word - block.begin) * m.width(), m.width(),
                      shift_of(run.place(output), packed.quantization()));
        }
      });
    }
  }
}

void check_group(int64_t group, int64_t column, const quant::Matrix& m, const std::string& name) {
  if (m.format.grouping == quant::Grouping::by_column) {
    TORCH_CHECK_VALUE(group >= 0 && group < m.groups().size(), name, ": must list groups below ",
                      m.groups().size(), "; got ", group);
    return;
  }
  const int64_t expected = m.format.group_size == 0 ? 0 : (m.columns.begin + column) / m.format.group_size;
  TORCH_CHECK_VALUE(group == expected, name, ": without desc_act column ", m.columns.begin + column,
                    " must be in group ", expected, "; got ", group);
}

/// The columns' groups; q, k and v, which are multiplied as one, must agree on them.
void read_groups(const PackedWeight& packed) {
  quant::Matrix& m = packed.matrix();
  const PackedPart part = packed.part(".g_idx");
  Tensor first;
  for (const model::StoredTensor& stored : packed.stored(part)) {
    const Tensor listed = at::empty(packed.local_shape(part), at::kInt);
    packed.read(stored, listed);
    const auto* group = elements<int32_t>(listed);
    if (!first.defined()) first = listed;
    packed.mistakes.collect([&] {
      for (int64_t column = 0; column < m.width(); ++column)
        check_group(group[column], column, m, stored.name);
      TORCH_CHECK_VALUE(at::equal(first, listed), stored.name,
                        ": must list the same groups as the weights that it is multiplied with; got others");
    });
  }
  if (base::mutated(base::Mutation::ignore_listed_groups)) first = std::get<0>(at::sort(first));
  if (m.group_of.defined()) m.group_of.copy_(first);
}

}  // namespace

void load_packed(const WeightFiles& files, const parallel::Parameter& weight, const model::Config& config,
                 int rank, ValidationErrors& mistakes) {
  const PackedWeight packed{files, weight, config, rank, mistakes};
  if (config.quantization->files == Quantization::Files::awq) {
    read_awq_codes(packed);
  } else {
    packed.read(packed.part(".qweight"), weight.quantized->codes);
    read_groups(packed);
  }
  packed.read(packed.part(".scales"), weight.quantized->scales);
  read_zeros(packed);
}

}  // namespace shardwise::checkpoint
