// quantization_config in config.json: supported and rejected options.
#include "shardwise/config/quantization.h"

#include <gtest/gtest.h>

#include "tests/config/small_json.h"

namespace shardwise::config::quantization_test {
namespace {

using test::contains;

/// Returns a llama config with sizes that packed files support.
json packable(const json& quantization) {
  return {{"vocab_size", 104},        {"hidden_size", 48}, {"intermediate_size", 96},
          {"num_key_value_heads", 3}, {"head_dim", 8},     {"quantization_config", quantization}};
}

TEST(ParseQuantization, ReadsGptqAndAwq) {
  const json gptq{{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}, {"sym", true}};
  const Quantization rows = *parse(small(packable(gptq))).quantization;
  EXPECT_EQ(rows, (Quantization{.file_format = Quantization::FileFormat::gptq, .bits = 8}));
  EXPECT_EQ(rows.text(), "int8 with a scale for each row (gptq)");
  json ordered{{"quant_method", "gptq"},    {"bits", 4},
               {"group_size", 32},          {"desc_act", true},
               {"lm_head", true},           {"checkpoint_format", "gptq_v2"},
               {"dynamic", json::object()}, {"pack_dtype", "int32"}};
  const Quantization listed = *parse(small(packable(ordered))).quantization;
  EXPECT_TRUE(listed.desc_act && listed.lm_head && !listed.zero_points_minus_one && listed.group_size == 32);
  ordered["format"] = ordered["checkpoint_format"];
  ordered.erase("checkpoint_format");
  EXPECT_FALSE(parse(small(packable(ordered))).quantization->zero_points_minus_one)
      << "GPTQModel's name of the field";
  const json older{{"quant_method", "awq"},
                   {"w_bit", 4},
                   {"q_group_size", 16},
                   {"version", "GEMM"},
                   {"modules_to_not_convert", nullptr}};
  const Quantization awq = *parse(small(packable(older))).quantization;
  EXPECT_EQ(awq.file_format, Quantization::FileFormat::awq);
  EXPECT_EQ(awq.group_size, 16);
  for (const json& quantization : {gptq, ordered, older}) {
    const Config config = parse(small(packable(quantization)));
    EXPECT_EQ(parse_config(to_json(config), "written"), config);
  }
}

TEST(ParseQuantization, ReadsAnInt8HeadBesideInt4Layers) {
  const json int8{{"bits", 8}, {"group_size", -1}};
  json gptq{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"lm_head", true}};
  gptq["dynamic"]["+:^lm_head$"] = int8;
  const Config head = parse(small(packable(gptq)));
  EXPECT_TRUE(head.quantization->int8_head);
  EXPECT_EQ(head.quantization->text(), "int4 in groups of 32, head int8 (gptq)");
  gptq["embeddings"] = true;
  EXPECT_PRED2(contains, parse_error(packable(gptq)), "dynamic must be {") << "it lists both or none";
  gptq["dynamic"]["+:^model.embed_tokens$"] = int8;
  const Config both = parse(small(packable(gptq)));
  EXPECT_EQ(both.quantization->text(), "int4 in groups of 32, head and embedding int8 (gptq)");
  for (const Config& config : {head, both}) EXPECT_EQ(parse_config(to_json(config), "written"), config);
  const Quantization &q = *both.quantization, table = q.of("model.embed_tokens.weight"),
                     layer = q.of("model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(std::pair(table.bits, table.group_size), std::pair(int64_t{8}, int64_t{0}));
  EXPECT_EQ(q.of("lm_head.weight"), table);
  EXPECT_EQ(layer, q);
  gptq["sym"] = false;
  EXPECT_PRED2(contains, parse_error(packable(gptq)), "dynamic must be absent");
}

TEST(ParseQuantization, RejectsUnsupportedOptions) {
  const auto error_with = [](json changes) {
    json quantization{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
    quantization.update(changes);
    return parse_error(packable(quantization));
  };
  EXPECT_EQ(error_with({{"quant_method", "bitsandbytes"}}),
            "c: quantization_config.quant_method must be gptq or awq; got \"bitsandbytes\"");
  EXPECT_EQ(error_with({{"bits", 3}}), "c: quantization_config.bits must be 4 or 8; got 3");
  EXPECT_EQ(error_with({{"group_size", 12}}),
            "c: quantization_config.group_size must be -1 (a full row) or a multiple of 8, from 8 to "
            "1048576; got 12");
  EXPECT_PRED2(contains, error_with({{"group_size", 9223372036854775800}}), "from 8 to 1048576");
  EXPECT_PRED2(contains, error_with({{"format", "gptq_v2"}, {"checkpoint_format", "gptq"}}),
               "format must be the same as checkpoint_format");
  EXPECT_EQ(error_with({{"checkpoint_format", "marlin"}}),
            "c: quantization_config.checkpoint_format must be gptq or gptq_v2; got \"marlin\"");
  EXPECT_EQ(error_with({{"pack_dtype", "int64"}}),
            "c: quantization_config.pack_dtype must be \"int32\", because other values are not supported; "
            "got \"int64\"");
  EXPECT_PRED2(contains, error_with({{"dynamic", {{"-:.*", json::object()}}}}), "must be absent");
  EXPECT_PRED2(contains, error_with({{"quant_method", "awq"}, {"zero_point", false}}), "must be true");
  EXPECT_PRED2(contains, error_with({{"quant_method", "awq"}, {"version", "gemv"}}), "must be gemm");
  EXPECT_PRED2(contains, error_with({{"quant_method", "awq"}, {"modules_to_not_convert", {"x"}}}), "absent");
  EXPECT_PRED2(contains, parse_error({{"quantization_config", {{"bits", 4}}}}), "quant_method");
  EXPECT_PRED2(contains, parse_error({{"quantization_config", 4}}), "must be an object; got 4");
  EXPECT_EQ(
      parse_error({{"intermediate_size", 101},
                   {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}}}),
      "c: intermediate_size must be a multiple of 8, the size of a packed word or group of quantized "
      "weights; got 101");
}

}  // namespace
}  // namespace shardwise::config::quantization_test
