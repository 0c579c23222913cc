// Kernels refuse tensors that are not on the CPU before they touch one, whichever argument it is.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shardwise/kernels/add_rms_norm.h"
#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/dropout.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/finite.h"
#include "shardwise/kernels/first_above.h"
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/qk_norm.h"
#include "shardwise/kernels/random.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/rotary.h"
#include "shardwise/kernels/swiglu.h"
#include "tests/kernels/on_other_device.h"
#include "tests/kernels/support.h"

namespace shardwise::kernels::device_test {
namespace {

using testing::KernelCall;
using testing::Tensors;

at::Tensor ids() {
  return at::zeros({3}, at::kLong);
}

std::vector<KernelCall> forward_ops() {
  const at::Tensor x = random_tensor({3, 8}, 1, at::kFloat), row = random_tensor({8}, 2, at::kFloat);
  const at::Tensor heads = random_tensor({1, 2, 3, 4}, 3, at::kFloat), out = at::empty({3, 8});
  const AttentionOptions each_head{.kv_of_head = {0, 1}};
  return {
      {"gelu", {x, row}, [](Tensors& t) { gelu(t[0], t[1], Gelu::erf); }},
      {"swiglu", {x}, [](Tensors& t) { swiglu(t[0]); }},
      {"rms_norm", {x, row}, [](Tensors& t) { rms_norm(t[0], t[1], 1e-6); }},
      {"layer_norm",
       {x, row, row},
       [](Tensors& t) {
         layer_norm(t[0], {t[1], t[2]}, 1e-6);
       }},
      {"dropout", {x}, [](Tensors& t) { dropout(t[0], 0.5, RandomKey::of(1), 0); }},
      {"loss_terms", {x, ids()}, [](Tensors& t) { loss_terms(t[0], t[1], 0); }},
      {"log_sums", {row.view({1, 4, 2})}, [](Tensors& t) { log_sums(t[0]); }},
      {"embedding", {out, ids(), x}, [](Tensors& t) { kernels::embedding_out(t[0], t[1], t[2], 0); }},
      {"product", {at::empty({3, 3}), x, x.t()}, [](Tensors& t) { product_out(t[0], t[1], t[2]); }},
      {"attention",
       {heads, heads, heads},
       [each_head](Tensors& t) {
         attention({t[0], t[1], t[2]}, each_head);
       }},
      {"fill_normal",
       {out},
       [](Tensors& t) {
         fill_normal_(t[0], {3, 8}, 0, {}, {}, 0, 1);
       }},
      {"first_nan_or_inf", {x}, [](Tensors& t) { first_nan_or_inf(t[0]); }},
      {"first_above", {row}, [](Tensors& t) { first_above(t[0], 0, 0); }},
      {"add_rms_norm",
       {out, at::empty({3, 8}), x, row, row},
       [partial = random_tensor({3, 8}, 4, at::kFloat)](Tensors& t) {
         const void* const partials[] = {partial.const_data_ptr()};
         add_rms_norm_out(t[0], t[1], t[2], {partials}, {t[3], t[4], 1e-6});
       }},
  };
}

std::vector<KernelCall> backward_ops() {
  const at::Tensor x = random_tensor({3, 8}, 1, at::kFloat), row = random_tensor({8}, 2, at::kFloat);
  const at::Tensor statistic = at::zeros({3});
  return {
      {"gelu_backward",
       {x, x, row, at::zeros({8})},
       [](Tensors& t) { gelu_backward(t[0], t[1], t[2], Gelu::erf, t[3]); }},
      {"swiglu_backward", {x.narrow(1, 0, 4), x}, [](Tensors& t) { swiglu_backward(t[0], t[1]); }},
      {"rms_norm_backward",
       {x, x, row, statistic, at::zeros({8})},
       [](Tensors& t) { rms_norm_backward(t[0], t[1], t[2], t[3], t[4]); }},
      {"layer_norm_backward",
       {x, x, row, statistic, statistic, at::zeros({8}), at::zeros({8})},
       [](Tensors& t) {
         layer_norm_backward(t[0], t[1], t[2], {t[3], t[4]}, {t[5], t[6]});
       }},
      {"cross_entropy_backward",
       {x, ids(), statistic},
       [](Tensors& t) { cross_entropy_backward_(t[0], t[1], 0, t[2], {.scale = 1, .ignore_index = -1}); }},
      {"embedding_backward",
       {at::zeros({5, 8}), x, ids()},
       [](Tensors& t) { embedding_backward_(t[0], t[1], t[2], 0); }},
      {"add_weight_grad", {at::zeros({8, 8}), x, x}, [](Tensors& t) { add_weight_grad_(t[0], t[1], t[2]); }},
      {"add_bias_grad", {at::zeros({8}), x}, [](Tensors& t) { add_bias_grad_(t[0], t[1]); }},
  };
}

/// 2 query heads and 1 KV head of 4 features, of 3 tokens of one sequence.
std::vector<KernelCall> head_ops() {
  const at::Tensor qkv = random_tensor({3, 1, 16}, 1, at::kFloat), weight = random_tensor({4}, 2, at::kFloat);
  const at::Tensor q = random_tensor({1, 2, 3, 4}, 3, at::kFloat),
                   kv = random_tensor({1, 1, 3, 4}, 4, at::kFloat);
  const at::Tensor y = random_tensor({3, 1, 8}, 5, at::kFloat), lse = at::zeros({1, 2, 3});
  const RotaryTables tables = rotary_tables({1, 0.1}, /*positions=*/3, at::kFloat);
  const auto split = [](const at::Tensor& cos, const at::Tensor& sin) {
    return HeadSplit{2, 1, 4, {cos, sin}};
  };
  const AttentionOptions one_kv_head{.kv_of_head = {0, 0}};
  return {
      {"attention_backward",
       {y, q, kv, kv, y, lse},
       [=](Tensors& t) {
         attention_backward(t[0], {t[1], t[2], t[3]}, {t[4], t[5]}, one_kv_head);
       }},
      {"split_rotary",
       {qkv, tables.cos, tables.sin},
       [=](Tensors& t) { split_rotary(t[0], split(t[1], t[2])); }},
      {"split_rotary_backward",
       {q, kv, kv, tables.cos, tables.sin},
       [=](Tensors& t) {
         split_rotary_backward({t[0], t[1], t[2]}, split(t[3], t[4]));
       }},
      {"split_norm_rotary",
       {qkv, tables.cos, tables.sin, weight, weight},
       [=](Tensors& t) {
         split_norm_rotary(t[0], split(t[1], t[2]), {{t[3], t[4]}, 1e-6});
       }},
      {"split_norm_rotary_backward",
       {q, kv, kv, qkv, tables.cos, tables.sin, weight, weight, at::zeros({4}), at::zeros({4})},
       [=](Tensors& t) {
         split_norm_rotary_backward({t[0], t[1], t[2]}, t[3], split(t[4], t[5]), {{t[6], t[7]}, 1e-6},
                                    {t[8], t[9]});
       }},
  };
}

TEST(Device, KernelsRefuseTensorsThatAreNotOnTheCpu) {
  for (const auto& kernels : {forward_ops(), backward_ops(), head_ops()})
    for (const KernelCall& kernel : kernels) testing::expect_refused_on_other_device(kernel);
}

}  // namespace
}  // namespace shardwise::kernels::device_test
