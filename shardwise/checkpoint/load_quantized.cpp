#include "shardwise/checkpoint/load_quantized.h"

#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "shardwise/checkpoint/load_packed.h"
#include "shardwise/checkpoint/weight_row_reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/quant/quantize.h"

namespace shardwise::checkpoint {

using at::Tensor;

namespace {

constexpr int64_t kRoundedBlockBytes = int64_t{8}
                                       << 20;  // of fp32; the file's dtype needs up to as much again

/// Returns the maximum over the ranks for every group of the full rows.
Tensor max_over_ranks(const Tensor& maxima, const quant::Matrix& m, const comm::Group& group) {
  const base::Range local = m.groups(), all = m.format.groups_of({0, m.in_features}, m.in_features);
  Tensor full = at::zeros({maxima.size(0), all.size()}, maxima.options());
  // Replaces NaN by infinity, which is refused too: a maximum over ranks need not propagate NaN.
  const Tensor numbers = at::nan_to_num(maxima, /*nan=*/std::numeric_limits<float>::infinity(),
                                        /*posinf=*/std::numeric_limits<float>::infinity());
  full.narrow(/*dim=*/1, local.begin, local.size()).copy_(numbers);
  group.all_reduce_(full, comm::Reduce::max);
  return full;
}

/// Quantizes the weight in blocks of rows; ranks that share rows process the same blocks. Stops at an error,
/// which all ranks that share rows find at the same block.
void quantize_on_load(const WeightFiles& files, const parallel::Parameter& weight,
                      const config::Config& stored, const comm::Group& group, ValidationErrors& errors) {
  quant::Matrix& m = *weight.quantized;
  const bool shares_rows = weight.rule.dim == 1 && group.size() > 1;
  const WeightRowReader source(files, model::stored_tensors(weight, stored), stored, group.rank());
  const base::Range groups = m.groups();
  for (const base::Range& rows : io::row_blocks(m.rows(), m.in_features * 4, kRoundedBlockBytes)) {
    const Tensor w = source.read(rows, m.width(), at::kFloat);
    Tensor maxima = quant::group_maxima(w, m.format, m.in_features, m.columns);
    if (shares_rows) maxima = max_over_ranks(maxima, m, group);
    if (!errors.collect([&] { check_magnitudes(maxima, m.format, weight.name); })) return;
    if (shares_rows) maxima = maxima.narrow(/*dim=*/1, groups.begin, groups.size()).contiguous();
    quant::quantize_rows_(m, rows.begin, w, maxima);
  }
}

}  // namespace

void check_magnitudes(const Tensor& maxima, const quant::Format& format, const std::string& name) {
  const float most = quant::max_magnitude(format);
  const auto* values = maxima.const_data_ptr<float>();
  for (int64_t i = 0; i < maxima.numel(); ++i) {
    TORCH_CHECK_VALUE(values[i] <= most, name, ": must have magnitudes of at most ", most,
                      " to be quantized, so that the scales fit fp16; got ", values[i], " [SW0239]");
  }
}

void load_quantized(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& config,
                    const comm::Group& group, ValidationErrors& errors) {
  if (config.quantization->is_packed()) return load_packed(files, weight, config, group.rank(), errors);
  quantize_on_load(files, weight, config::dense(config), group, errors);
}

}  // namespace shardwise::checkpoint
