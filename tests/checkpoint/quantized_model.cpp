#include "tests/checkpoint/quantized_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/model/names.h"
#include "tests/quant/reference.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing {

namespace {

at::Tensor dense_value(const parallel::Parameter& parameter) {
  return parameter.panels ? dequantized(*parameter.panels) : parameter.value.detach();
}

}  // namespace

config::Config packable_config(const std::string& family) {
  config::Config config = uneven_config(/*is_tied=*/false, family);
  config.hidden_size = family == "gpt2" ? 48 : 40;
  config.head_dim = 8;
  config.intermediate_size = 104;
  return config;
}

config::Config quantized_on_load(config::Config config, int64_t bits, int64_t group_size) {
  config.quantization = config::Quantization{.bits = bits, .group_size = group_size};
  return config;
}

std::string put_weights(const std::string& dir, const config::Config& config, const Tensors& full) {
  save_full(dir, config, {full, at::kFloat}, /*ranks=*/1, /*step=*/1);
  return checkpoint::resolve(dir);
}

at::Tensor dequantized(const quant::Panels& panels) {
  at::Tensor w = at::empty({panels.rows, panels.width()}, at::kFloat);
  dequantize_out(w, panels, {0, panels.rows});
  return w;
}

Tensors quantized_tensors(const config::Config& config, const Tensors& full) {
  const config::Config stored = config::dense(config);
  Tensors tensors = full;
  const config::ParameterTable quantized(config);
  for (const config::ParameterInfo& parameter : config::ParameterTable(stored)) {
    if (quantized.at(parameter.name).format == config::StorageFormat::dense) continue;
    const config::Quantization how = config.quantization->of(parameter.name);
    for (const model::StoredTensor& tensor : model::stored_tensors(parameter, stored)) {
      const at::Tensor w = tensor.oriented(full.at(tensor.name)).contiguous();
      const at::Tensor quantized = requantized(w, how.bits, how.group_size);
      tensors[tensor.name] = tensor.oriented(quantized).contiguous();
    }
  }
  return tensors;
}

void expect_shards(const model::DecoderWeights& weights, const Tensors& full, const std::string& where) {
  const config::Config stored = config::dense(weights.config());
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    const at::Tensor local = dense_value(*used.parameter);
    for (const model::StoredTensor& tensor : model::stored_tensors(*used.parameter, stored)) {
      for (const auto& piece : tensor.held(weights.group().rank())) {
        const at::Tensor actual = tensor.oriented(local).narrow(tensor.dim, piece.local_begin, piece.size);
        const at::Tensor expected = full.at(tensor.name).narrow(tensor.dim, piece.global_begin, piece.size);
        EXPECT_TRUE(same_bits(actual, expected))
            << tensor.name << " on rank " << weights.group().rank() << where;
      }
    }
  }
}

void expect_same_matrices(const model::DecoderWeights& a, const model::DecoderWeights& b,
                          const std::string& where) {
  ASSERT_EQ(a.used_parameters().size(), b.used_parameters().size());
  for (size_t i = 0; i < a.used_parameters().size(); ++i) {
    const parallel::Parameter &p = *a.used_parameters()[i].parameter, &q = *b.used_parameters()[i].parameter;
    ASSERT_EQ(p.panels != nullptr, q.panels != nullptr) << p.name;
    if (!p.panels) {
      EXPECT_TRUE(same_bits(p.value.detach(), q.value.detach())) << p.name << where;
      continue;
    }
    EXPECT_TRUE(at::equal(dequantized(*p.panels), dequantized(*q.panels))) << p.name << where;
  }
}

void expect_mapped_like(const model::DecoderWeights& from, const model::DecoderWeights& to,
                        const std::string& source, const std::string& out) {
  const comm::Group& group = from.group();
  const char* dtype = from.dtype() == at::kBFloat16 ? "bf16" : "fp32";
  checkpoint::write_panel_files(source, out, from, {group.size(), dtype, {}, {}, {}},
                                [](int64_t, int64_t) {});
  const checkpoint::LoadStats stats = checkpoint::load_weights(out, to);
  EXPECT_EQ(stats.mapped_bytes, checkpoint::mapped_bytes(from));
  ASSERT_EQ(from.used_parameters().size(), to.used_parameters().size());
  for (size_t i = 0; i < from.used_parameters().size(); ++i) {
    const parallel::Parameter &p = *from.used_parameters()[i].parameter,
                              &q = *to.used_parameters()[i].parameter;
    ASSERT_EQ(p.panels != nullptr, q.panels != nullptr) << p.name;
    if (!p.panels) {
      EXPECT_TRUE(same_bits(p.value.detach(), q.value.detach())) << p.name << " in " << out;
      continue;
    }
    EXPECT_EQ(p.panels->format, q.panels->format) << p.name;
    EXPECT_EQ(p.panels->layout.panel_bytes(), q.panels->layout.panel_bytes()) << p.name;
    EXPECT_TRUE(same_bits(p.panels->data, q.panels->data)) << p.name << " in " << out;
    EXPECT_TRUE(same_bits(dequantized(*p.panels), dequantized(*q.panels))) << p.name << " in " << out;
  }
}

config::Config wide_config(const std::string& family, bool is_tied) {
  config::Config config = uneven_config(is_tied, family);
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.num_key_value_heads = family == "gpt2" ? 4 : 2;
  config.head_dim = family == "gpt2" ? 16 : 32;
  config.intermediate_size = 256;
  config.vocab_size = 128;
  config.dtype = "bfloat16";
  return config;
}

}  // namespace shardwise::testing
