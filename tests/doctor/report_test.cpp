#include "shardwise/doctor/report.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardwise::doctor::report_test {
namespace {

Deviation result(const std::string& module, const std::string& tensor, double difference,
                 bool is_gradient = false) {
  return {{module, tensor, is_gradient}, difference, /*scale=*/1, /*rounding=*/0, /*bound=*/1e-3};
}

Comparison comparison(at::ScalarType dtype, std::vector<Deviation> deviations) {
  return {"plain", {.dtype = dtype}, /*tp=*/2, std::move(deviations)};
}

TEST(Comparison, NamesTheFirstResultBeyondItsBound) {
  const Comparison correct = comparison(at::kDouble, {result("layer 0", "output", 1e-4)});
  EXPECT_EQ(correct.first_bug(), nullptr);
  const Comparison broken = comparison(
      at::kDouble, {result("layer 0", "output", 1e-4), result("layer 1", "output", 2e-3),
                    result("head", "logits", 1), result("layer 1", "output", 1, /*is_gradient=*/true)});
  ASSERT_NE(broken.first_bug(), nullptr);
  EXPECT_EQ(broken.first_bug()->label, (Label{"layer 1", "output"}));
}

TEST(Comparison, ReportsNaNAsABug) {
  const Comparison broken = comparison(at::kDouble, {result("layer 0", "output", std::nan(""))});
  ASSERT_NE(broken.first_bug(), nullptr);
  EXPECT_TRUE(std::isinf(broken.first_bug()->bound_ratio()));
  Report report;
  report.comparisons = {broken};
  EXPECT_EQ(report.bug_summary(), "bug at layer 0, output: NaN or Inf (plain, TP=2, fp64)");
}

TEST(Comparison, ShowsTheLargestDeviationsOfEachLayerInForwardOrder) {
  const Comparison all = comparison(
      at::kDouble, {result("embedding", "output", 1e-5), result("layer 0", "attention output", 3e-4),
                    result("layer 0", "output", 2e-4), result("layer 0", "output", 1e-6, true),
                    result("layer 0", "self_attn.o_proj.weight", 4e-6, true),
                    result("embedding", "embed_tokens.weight", 1e-7, true)});
  const std::vector<LargestDeviations> layers = all.by_layer();
  ASSERT_EQ(layers.size(), 2);
  EXPECT_EQ(layers[0].module, "embedding");
  EXPECT_EQ(layers[0].gradient->label.tensor, "embed_tokens.weight");
  EXPECT_EQ(layers[1].activation->label.tensor, "attention output");
  EXPECT_EQ(layers[1].gradient->label.text(), "gradient of self_attn.o_proj.weight");
}

TEST(Report, NamesTheCauseBeforeItsConsequences) {
  Report report;
  EXPECT_EQ(report.bug_summary(), std::nullopt);
  report.traffic.push_back({"plain", {.dtype = at::kFloat}, 2, 1, "forward", "all_reduce", {5, 80}, {4, 64}});
  EXPECT_EQ(*report.bug_summary(),
            "bug in the communication of rank 1 (plain, TP=2, forward): 5 calls of all_reduce with 80 bytes; "
            "by formula 4 "
            "with 64");
  report.checks = {{"gradient norm", "plain", false, "3, TP=1's 2"}};
  EXPECT_EQ(*report.bug_summary(), "bug in the gradient norm, plain: 3, TP=1's 2");
  report.comparisons = {comparison(at::kBFloat16, {result("layer 2", "output", 1)})};
  EXPECT_EQ(*report.bug_summary(),
            "bug at layer 2, output: differs from TP=1 by 1.00e+00, the bound is 1.00e-03, the largest value "
            "is 1.00e+00 "
            "(plain, TP=2, bf16)");
  report.comparisons.push_back(comparison(at::kDouble, {result("layer 3", "mlp.down_proj.weight", 1, true)}));
  EXPECT_TRUE(report.bug_summary()->starts_with("bug at layer 3, gradient of mlp.down_proj.weight"));
  report.checks.push_back({"weights", "", false, "lm_head.weight differs from TP=1"});
  EXPECT_EQ(*report.bug_summary(), "bug in the weights: lm_head.weight differs from TP=1");
}

TEST(Label, HasTheModuleOfAParameter) {
  EXPECT_EQ(label_of("model.layers.12.self_attn.qkv_proj.weight"),
            (Label{"layer 12", "self_attn.qkv_proj.weight"}));
  EXPECT_EQ(label_of("model.embed_tokens.weight"), (Label{"embedding", "embed_tokens.weight"}));
  EXPECT_EQ(label_of("model.embed_positions.weight"), (Label{"embedding", "embed_positions.weight"}));
  EXPECT_EQ(label_of("model.norm.bias"), (Label{"final norm", "norm.bias"}));
  EXPECT_EQ(label_of("lm_head.weight"), (Label{"head", "lm_head.weight"}));
}

}  // namespace
}  // namespace shardwise::doctor::report_test
