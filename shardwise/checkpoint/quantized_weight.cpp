#include "shardwise/checkpoint/quantized_weight.h"

#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/packed_weight.h"
#include "shardwise/checkpoint/weight_rows.h"
#include "shardwise/quant/quantize.h"

namespace shardwise::checkpoint {

using at::Tensor;

namespace {

constexpr int64_t kRoundedBlockBytes = int64_t{8} << 20;  // of fp32; as much again as the file has it

/// Of every group of whole rows the largest of all ranks' values, the same on each.
Tensor over_ranks(const Tensor& maxima, const quant::Matrix& m, const comm::Group& group) {
  const base::Range own = m.groups(), all = m.format.groups_of({0, m.in_features}, m.in_features);
  Tensor whole = at::zeros({maxima.size(0), all.size()}, maxima.options());
  // What is no number counts as too large: a maximum over ranks need not keep NaN.
  const Tensor numbers = at::nan_to_num(maxima, /*nan=*/std::numeric_limits<float>::infinity(),
                                        /*posinf=*/std::numeric_limits<float>::infinity());
  whole.narrow(/*dim=*/1, own.begin, own.size()).copy_(numbers);
  group.all_reduce_(whole, comm::Reduce::max);
  return whole;
}

/// Block by block, of the same rows on every rank where they share them. Stops at a mistake, which such ranks
/// find together.
void convert(const WeightFiles& files, const parallel::Parameter& weight, const model::Config& stored,
             const comm::Group& group, ValidationErrors& mistakes) {
  quant::Matrix& m = *weight.quantized;
  const bool shares_rows =
      weight.rule.dim == 1 && group.size() > 1 && !base::mutated(base::Mutation::scale_by_shard);
  const WeightRows source(files, model::stored_tensors(weight, stored), stored, group.rank());
  const base::Range groups = m.groups();
  for (const base::Range& rows : row_blocks(m.rows(), m.in_features * 4, kRoundedBlockBytes)) {
    const Tensor w = source.read(rows, m.width(), at::kFloat);
    Tensor maxima = quant::group_maxima(w, m.format, m.in_features, m.columns);
    if (shares_rows) maxima = over_ranks(maxima, m, group);
    if (!mistakes.collect([&] { check_magnitudes(maxima, m.format, weight.name); })) return;
    if (shares_rows) maxima = maxima.narrow(/*dim=*/1, groups.begin, groups.size()).contiguous();
    quant::quantize_rows_(m, rows.begin, w, maxima);
  }
}

}  // namespace

void check_magnitudes(const Tensor& maxima, const quant::Format& format, const std::string& name) {
  const float most = quant::most_magnitude(format);
  const auto* values = maxima.const_data_ptr<float>();
  for (int64_t i = 0; i < maxima.numel(); ++i) {
    TORCH_CHECK_VALUE(values[i] <= most, name, ": must hold numbers of at most ", most,
                      " to be quantized, so that their scales fit fp16; got ", values[i]);
  }
}

void load_quantized(const WeightFiles& files, const parallel::Parameter& weight, const model::Config& config,
                    const comm::Group& group, ValidationErrors& mistakes) {
  if (config.quantization->is_packed()) return load_packed(files, weight, config, group.rank(), mistakes);
  convert(files, weight, model::dense(config), group, mistakes);
}

}  // namespace shardwise::checkpoint
