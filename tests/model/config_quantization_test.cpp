// config.json's quantization_config: what is read of it, and what is refused.
#include "shardwise/model/config_quantization.h"

#include <gtest/gtest.h>

#include "tests/model/small_json.h"

namespace shardwise::model::config_quantization_test {
namespace {

using test::contains;

/// A llama of sizes that packed files hold.
json packable(const json& quantization) {
  return {{"vocab_size", 104},        {"hidden_size", 48}, {"intermediate_size", 96},
          {"num_key_value_heads", 3}, {"head_dim", 8},     {"quantization_config", quantization}};
}

TEST(ParseQuantization, OfGptqAndAwq) {
  const json gptq{{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}, {"sym", true}};
  const Quantization rows = *parse(small(packable(gptq))).quantization;
  EXPECT_EQ(rows, (Quantization{.files = Quantization::Files::gptq, .bits = 8}));
  EXPECT_EQ(rows.text(), "int8 with a scale for each row (gptq)");
  json ordered{{"quant_method", "gptq"},    {"bits", 4},
               {"group_size", 32},          {"desc_act", true},
               {"lm_head", true},           {"checkpoint_format", "gptq_v2"},
               {"dynamic", json::object()}, {"pack_dtype", "int32"}};
  const Quantization listed = *parse(small(packable(ordered))).quantization;
  EXPECT_TRUE(listed.lists_groups && listed.head && !listed.zeros_less_one && listed.group_size == 32);
  ordered["format"] = ordered["checkpoint_format"];
  ordered.erase("checkpoint_format");
  EXPECT_FALSE(parse(small(packable(ordered))).quantization->zeros_less_one) << "GPTQModel's other name";
  const json older{{"quant_method", "awq"},
                   {"w_bit", 4},
                   {"q_group_size", 16},
                   {"version", "GEMM"},
                   {"modules_to_not_convert", nullptr}};
  const Quantization awq = *parse(small(packable(older))).quantization;
  EXPECT_EQ(awq.files, Quantization::Files::awq);
  EXPECT_EQ(awq.group_size, 16);
  for (const json& quantization : {gptq, ordered, older}) {
    const Config config = parse(small(packable(quantization)));
    EXPECT_EQ(parse_config(to_json(config), "written"), config);
  }
}

TEST(ParseQuantization, ThatIsNotReadIsRefused) {
  const auto refused = [](json changes) {
    json quantization{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
    quantization.update(changes);
    return refusal(packable(quantization));
  };
  EXPECT_EQ(refused({{"quant_method", "bitsandbytes"}}),
            "c: quantization_config.quant_method must be gptq or awq; got \"bitsandbytes\"");
  EXPECT_EQ(refused({{"bits", 3}}), "c: quantization_config.bits must be 4 or 8; got 3");
  EXPECT_EQ(refused({{"group_size", 12}}),
            "c: quantization_config.group_size must be -1 (a whole row) or a multiple of 8, from 8 to "
            "1048576; got 12");
  EXPECT_PRED2(contains, refused({{"group_size", 9223372036854775800}}), "from 8 to 1048576");
  EXPECT_PRED2(contains, refused({{"format", "gptq_v2"}, {"checkpoint_format", "gptq"}}),
               "format must be that of checkpoint_format");
  EXPECT_EQ(refused({{"checkpoint_format", "marlin"}}),
            "c: quantization_config.checkpoint_format must be gptq or gptq_v2; got \"marlin\"");
  EXPECT_EQ(refused({{"pack_dtype", "int64"}}),
            "c: quantization_config.pack_dtype must be \"int32\", for others are not read; got \"int64\"");
  EXPECT_PRED2(contains, refused({{"dynamic", {{"-:.*", json::object()}}}}), "must be left out");
  EXPECT_PRED2(contains, refused({{"quant_method", "awq"}, {"zero_point", false}}), "must be true");
  EXPECT_PRED2(contains, refused({{"quant_method", "awq"}, {"version", "gemv"}}), "must be gemm");
  EXPECT_PRED2(contains, refused({{"quant_method", "awq"}, {"modules_to_not_convert", {"x"}}}), "left out");
  EXPECT_PRED2(contains, refusal({{"quantization_config", {{"bits", 4}}}}), "quant_method");
  EXPECT_PRED2(contains, refusal({{"quantization_config", 4}}), "must be an object; got 4");
  EXPECT_EQ(refusal({{"intermediate_size", 101},
                     {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}}}),
            "c: intermediate_size must be a multiple of 8, for quantized files keep so many in a word or a "
            "group; got 101");
}

}  // namespace
}  // namespace shardwise::model::config_quantization_test
