// A small model whose weights fill words and groups unevenly, in directories of either kind, and what its
// weights are once they are quantized.
#pragma once
#include <string>

#include "shardwise/quant/matrix.h"
#include "tests/checkpoint/fixture.h"

namespace shardwise::testing {

/// 6 heads of 8 elements (boundaries within groups of 32 on 4 ranks), 3 KV heads, 104 ffn columns; of
/// `family` llama, phi3 (fused in the file) or gpt2 (transposed there, and 6 KV heads).
model::Config packable_config(const std::string& family = "llama");

/// The config with weights quantized while they are read.
model::Config converting(model::Config config, int64_t bits, int64_t group_size);

/// A directory with the weights alone, fp32.
std::string put_weights(const std::string& dir, const model::Config& config, const Tensors& whole);

/// Codes as numbers, fp32.
at::Tensor dequantized(const quant::Matrix& m);

/// The stored tensors of `config` that its quantization changes, dequantized from codes made of the whole
/// ones; all others as they are.
Tensors quantized_tensors(const model::Config& config, const Tensors& whole);

/// Every slice of a rank, its codes as numbers, is bit for bit its part of `whole`; `where` is for messages.
void expect_slices(const model::DecoderWeights& weights, const Tensors& whole, const std::string& where);

}  // namespace shardwise::testing
