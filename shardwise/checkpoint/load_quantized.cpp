#include "shardwise/checkpoint/load_quantized.h"

#include "shardwise/checkpoint/load_packed.h"
#include "shardwise/checkpoint/weight_row_reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/parallel/quantized_parameter.h"

namespace shardwise::checkpoint {

using at::Tensor;

namespace {

constexpr int64_t kRoundedBlockBytes = int64_t{8}
                                       << 20;  // of fp32; the file's dtype needs up to as much again

/// Quantizes the weight in blocks of rows; ranks that share rows process the same blocks. Stops at an error,
/// which all ranks that share rows find at the same block.
void quantize_on_load(const WeightFiles& files, const parallel::Parameter& weight,
                      const config::Config& stored, const comm::Group& group, ValidationErrors& errors) {
  quant::Panels& to = *weight.panels;
  quant::allocate_(to);
  const WeightRowReader source(files, model::stored_tensors(weight, stored), stored, group.rank());
  for (const base::Range& rows : io::row_blocks(to.rows, to.in_features * 4, kRoundedBlockBytes)) {
    const Tensor w = source.read(rows, to.width(), at::kFloat),
                 maxima = parallel::group_maxima(weight, w, group);
    if (!errors.collect([&] { parallel::quantize_rows_(weight, rows.begin, w, maxima); })) return;
  }
}

/// Of bf16: small enough to stay in the cache until they are packed.
constexpr int64_t kBf16BlockBytes = int64_t{1} << 18;

}  // namespace

void load_quantized(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& config,
                    const comm::Group& group, ValidationErrors& errors) {
  if (config.quantization->is_packed()) return load_packed(files, weight, config, group.rank(), errors);
  quantize_on_load(files, weight, config::dense(config), group, errors);
}

void pack_on_load(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& stored,
                  int rank, ValidationErrors& errors) {
  quant::Panels& to = *weight.panels;
  quant::allocate_(to);
  const WeightRowReader source(files, model::stored_tensors(weight, stored), stored, rank);
  const std::vector<base::Range> blocks = io::row_blocks(to.rows, to.width() * 2, kBf16BlockBytes);
  std::vector<ValidationErrors> found(blocks.size());
  kernels::for_ranges(std::ssize(blocks), kBf16BlockBytes / 2, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const at::Tensor w = source.read_finite(blocks[i], to.width(), at::kBFloat16, found[i]);
      quant::pack_bf16_rows_(to, blocks[i].begin, w);
    }
  });
  for (const ValidationErrors& in_block : found) errors.add(in_block);
}

}  // namespace shardwise::checkpoint
