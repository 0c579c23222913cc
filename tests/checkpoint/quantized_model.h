// A small model whose weights fill words and groups unevenly, in unquantized and quantized directories, and
// the expected values of its quantized weights.
#pragma once
#include <string>

#include "shardwise/quant/panels.h"
#include "tests/checkpoint/fixture.h"

namespace shardwise::testing {

/// Returns a config with 6 heads of 8 elements (boundaries within groups of 32 on 4 ranks), 3 KV heads and
/// 104 ffn columns, of `family` llama, phi3 (fused in the file) or gpt2 (transposed in the file, 6 KV heads).
config::Config packable_config(const std::string& family = "llama");

/// Returns the config with weights quantized on load.
config::Config quantized_on_load(config::Config config, int64_t bits, int64_t group_size);

/// Writes a directory with the weights in fp32 and returns its path.
std::string put_weights(const std::string& dir, const config::Config& config, const Tensors& full);

/// Returns the dequantized weight, fp32.
at::Tensor dequantized(const quant::Panels& panels);

/// Returns the full stored tensors of `config`, with those that its quantization changes quantized and
/// dequantized.
Tensors quantized_tensors(const config::Config& config, const Tensors& full);

/// Expects every dequantized shard of a rank to equal its part of `full` in every bit; `where` is for
/// messages.
void expect_shards(const model::DecoderWeights& weights, const Tensors& full, const std::string& where);

/// Expects equal values of quantized weights, parameter by parameter.
void expect_same_matrices(const model::DecoderWeights& a, const model::DecoderWeights& b,
                          const std::string& where);

/// Writes `from` as panel files, maps them in `to`, and expects every tensor of the weights to be the same
/// bit for bit, but for data that is mapped. Collective.
void expect_mapped_like(const model::DecoderWeights& from, const model::DecoderWeights& to,
                        const std::string& source, const std::string& out);

/// Returns a config of which most weights have multiples of 64 rows on one and two ranks.
config::Config wide_config(const std::string& family, bool is_tied);

}  // namespace shardwise::testing
