// Loads files that the test packs in the formats of GPTQ and AWQ, and checks at every tp size that the shards
// dequantize to the packed values.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::published_layouts_test {
namespace {

using nlohmann::json;

struct Layout {
  const char* name;
  const char* method;
  int64_t bits, group_size;
  bool is_ordered;  // GPTQ's act-order: g_idx assigns each column to a group in any order
  json more;        // of quantization_config
};
const Layout kLayouts[] = {
    {"gptq", "gptq", 4, 32, false, {}},
    {"gptq_v2", "gptq", 4, 32, false, {{"checkpoint_format", "gptq_v2"}}},
    {"gptq_rows", "gptq", 8, -1, false, {}},
    {"gptq_ordered", "gptq", 4, 32, true, {{"desc_act", true}}},
    {"awq", "awq", 4, 8, false, {{"zero_point", true}}},
};

/// A quantized weight [outputs, columns] with asymmetric zero points.
struct QuantizedWeight {
  QuantizedWeight(int64_t outputs, int64_t columns, const Layout& layout, std::mt19937& random)
      : outputs(outputs), columns(columns), group_of(columns) {
    const int64_t size = layout.group_size == -1 ? columns : layout.group_size;
    for (int64_t i = 0; i < columns; ++i) group_of[i] = static_cast<int32_t>(i / size);
    groups = group_of.back() + 1;
    // Weights with the same input have the same order.
    if (layout.is_ordered) std::ranges::shuffle(group_of, std::mt19937(columns));
    const uint32_t limit = 1u << layout.bits;
    for (int64_t i = 0; i < outputs * columns; ++i) codes.push_back(random() % limit);
    for (int64_t i = 0; i < outputs * groups; ++i) {
      zeros.push_back(1 + random() % (limit - 1));
      scales.emplace_back(0.01f * static_cast<float>(1 + random() % 100));
    }
  }

  uint32_t code(int64_t column, int64_t output) const { return codes[output * columns + column]; }
  uint32_t zero(int64_t group, int64_t output) const { return zeros[output * groups + group]; }
  c10::Half scale(int64_t group, int64_t output) const { return scales[output * groups + group]; }

  at::Tensor numbers() const {
    at::Tensor w = at::empty({outputs, columns}, at::kFloat);
    for (int64_t output = 0; output < outputs; ++output) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t group = group_of[column];
        const int steps = static_cast<int>(code(column, output)) - static_cast<int>(zero(group, output));
        w[output][column] = static_cast<float>(steps) * static_cast<float>(scale(group, output));
      }
    }
    return w;
  }

  int64_t outputs, columns, groups;
  std::vector<uint32_t> codes, zeros;
  std::vector<c10::Half> scales;
  std::vector<int32_t> group_of;
};

/// Returns a tensor of rows x columns elements, each `at(row, column)`.
template <class At>
Stored stored(const std::string& dtype, int64_t rows, int64_t columns, At at) {
  Stored tensor{dtype, {rows, columns}, {}};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto element = at(row, column);
      char bytes[sizeof(element)];
      std::memcpy(bytes, &element, sizeof(element));
      tensor.bytes.append(bytes, sizeof(element));
    }
  }
  return tensor;
}

/// Packs values along the outputs into words: value order[i] of a word at the i-th position from the lowest
/// bits.
template <class At>
Stored words_along_outputs(int64_t rows, int64_t outputs, int64_t bits, const std::vector<int>& order,
                           At code) {
  const int64_t count = 32 / bits;
  return stored("I32", rows, outputs / count, [&](int64_t row, int64_t word) {
    uint32_t value = 0;
    for (int64_t position = 0; position < count; ++position)
      value |= code(row, word * count + order[position]) << (position * bits);
    return value;
  });
}

template <class At>
Stored words_along_inputs(int64_t columns, int64_t outputs, int64_t bits, At code) {
  const int64_t count = 32 / bits;
  return stored("I32", columns / count, outputs, [&](int64_t word, int64_t output) {
    uint32_t value = 0;
    for (int64_t position = 0; position < count; ++position)
      value |= code(word * count + position, output) << (position * bits);
    return value;
  });
}

/// Returns the tensors in which AutoGPTQ, or AutoAWQ's gemm kernel, stores a weight, by the suffix of their
/// names.
StoredTensors packed(const QuantizedWeight& w, const Layout& layout) {
  const auto code = [&](int64_t column, int64_t output) { return w.code(column, output); };
  const auto zero = [&](int64_t group, int64_t output) { return w.zero(group, output); };
  const auto zero_less_one = [&](int64_t group, int64_t output) { return w.zero(group, output) - 1; };
  const auto scale = [&](int64_t group, int64_t output) { return w.scale(group, output).x; };
  StoredTensors tensors{{"scales", stored("F16", w.groups, w.outputs, scale)}};
  if (layout.method == std::string("awq")) {
    const std::vector<int> order{0, 2, 4, 6, 1, 3, 5, 7};
    tensors["qweight"] = words_along_outputs(w.columns, w.outputs, layout.bits, order, code);
    tensors["qzeros"] = words_along_outputs(w.groups, w.outputs, layout.bits, order, zero);
    return tensors;
  }
  std::vector<int> order(32 / layout.bits);
  std::iota(order.begin(), order.end(), 0);
  tensors["qweight"] = words_along_inputs(w.columns, w.outputs, layout.bits, code);
  tensors["qzeros"] = layout.more.contains("checkpoint_format")
                          ? words_along_outputs(w.groups, w.outputs, layout.bits, order, zero)
                          : words_along_outputs(w.groups, w.outputs, layout.bits, order, zero_less_one);
  tensors["g_idx"] = stored("I32", 1, w.columns, [&](int64_t, int64_t column) { return w.group_of[column]; });
  tensors["g_idx"].shape = {w.columns};
  return tensors;
}

/// A directory of such files and their dequantized values.
struct PublishedDirectory {
  explicit PublishedDirectory(const Layout& layout) {
    const config::Config config = packable_config();
    numbers = full_state(config, at::kFloat, /*seed=*/15).tensors;
    path = put_weights(directory.path(), config, numbers);
    StoredTensors tensors;
    std::mt19937 random(16);
    for (const auto& [name, tensor] : read_safetensors(path + "/model.safetensors")) {
      if (!name.ends_with("_proj.weight")) {
        tensors[name] = tensor;
        continue;
      }
      const QuantizedWeight codes(tensor.shape[0], tensor.shape[1], layout, random);
      numbers[name] = codes.numbers();
      const std::string module = name.substr(0, name.rfind('.') + 1);
      for (const auto& [leaf, part] : packed(codes, layout)) tensors[module + leaf] = part;
    }
    std::ofstream(path + "/model.safetensors", std::ios::binary) << safetensors_of(tensors);
    json stored = json::parse(test::contents(path + "/config.json"));
    stored["quantization_config"] = {
        {"quant_method", layout.method}, {"bits", layout.bits}, {"group_size", layout.group_size}};
    stored["quantization_config"].update(layout.more.is_null() ? json::object() : layout.more);
    std::ofstream(path + "/config.json") << stored;
  }

  TemporaryDirectory directory;
  std::string path;
  Tensors numbers;
};

class PublishedLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(PublishedLayout, DequantizesToThePackedValues) {
  const PublishedDirectory published(GetParam());
  checkpoint::check(published.path, /*needs_state=*/false);
  const config::Config config = config::load_config(published.path);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kFloat);
      checkpoint::load_weights(published.path, weights);
      expect_shards(weights, published.numbers, " of " + std::to_string(ranks));
    });
  }
}

TEST_P(PublishedLayout, IsMappedFromPanelFilesAsItWasPacked) {
  const PublishedDirectory published(GetParam());
  const config::Config config = config::load_config(published.path);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights packed(config, group, at::kFloat), mapped(config, group, at::kFloat);
      checkpoint::load_weights(published.path, packed);
      expect_mapped_like(packed, mapped, published.path,
                         published.directory / ("panels-" + std::to_string(ranks)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PublishedLayout, ::testing::ValuesIn(kLayouts),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shardwise::testing::published_layouts_test
