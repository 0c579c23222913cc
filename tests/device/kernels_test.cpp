// Every function of kernels/ that a device has a kernel for gives on the emulated device what it gives on the
// CPU, up to the roundings of its sums.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "shardwise/kernels/add_rms_norm.h"
#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/cached_attention.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/dropout.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/finite.h"
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/qk_norm.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/rotary.h"
#include "shardwise/kernels/swiglu.h"
#include "tests/device/device.h"
#include "tests/support/error_text.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::device_test {
namespace {

using at::Tensor;
using kernels::device_of;
using Tensors = std::vector<Tensor>;

/// A call of a function of kernels/: it may write to its arguments, and returns its results.
struct Call {
  std::string name;
  Tensors arguments;
  std::function<Tensors(Tensors&)> call;
};

Tensor values(std::vector<int64_t> shape, uint64_t seed, at::ScalarType dtype) {
  return testing::random_tensor(shape, seed, dtype);
}
Tensor sums(std::vector<int64_t> shape) {
  return values(shape, 99, at::kFloat);
}

constexpr int64_t kRows = 5, kWidth = 24;

std::vector<Call> norm_calls(at::ScalarType dtype) {
  const Tensor x = values({kRows, kWidth}, 1, dtype), dy = values({kRows, kWidth}, 2, dtype),
               weight = values({kWidth}, 3, dtype), bias = values({kWidth}, 4, dtype);
  return {
      {"rms_norm",
       {x, weight},
       [](Tensors& t) {
         Tensor y = at::empty_like(t[0]), rstd = at::empty({kRows}, t[0].options().dtype(at::kFloat));
         kernels::rms_norm_out(y, rstd, t[0], t[1], 1e-5);
         return Tensors{y, rstd};
       }},
      {"rms_norm_backward",
       {dy, x, weight, sums({kRows}), sums({kWidth})},
       [](Tensors& t) {
         return Tensors{kernels::rms_norm_backward(t[0], t[1], t[2], t[3], t[4]), t[4]};
       }},
      {"rms_norm_backward of a frozen weight",
       {dy, x, weight, sums({kRows})},
       [](Tensors& t) { return Tensors{kernels::rms_norm_backward(t[0], t[1], t[2], t[3], {})}; }},
      {"layer_norm",
       {x, weight, bias},
       [](Tensors& t) {
         const auto wide = t[0].options().dtype(at::kFloat);
         Tensor y = at::empty_like(t[0]);
         kernels::RowMoments moments{at::empty({kRows}, wide), at::empty({kRows}, wide)};
         kernels::layer_norm_out(y, moments, t[0], {t[1], t[2]}, 1e-5);
         return Tensors{y, moments.mean, moments.rstd};
       }},
      {"layer_norm_backward",
       {dy, x, weight, sums({kRows}), sums({kRows}), sums({kWidth}), sums({kWidth})},
       [](Tensors& t) {
         const Tensor dx = kernels::layer_norm_backward(t[0], t[1], t[2], {t[3], t[4]}, {t[5], t[6]});
         return Tensors{dx, t[5], t[6]};
       }},
      {"add_rms_norm",
       {x, dy, weight, bias},
       [](Tensors& t) {
         Tensor residual = at::empty_like(t[0]), norm = at::empty_like(t[0]);
         const void* const partials[] = {t[1].const_data_ptr()};
         kernels::add_rms_norm_out(residual, norm, t[0], {partials}, {t[3], t[2], 1e-5});
         return Tensors{residual, norm};
       }},
  };
}

std::vector<Call> activation_calls(at::ScalarType dtype) {
  const Tensor x = values({kRows, kWidth}, 1, dtype), dy = values({kRows, kWidth}, 2, dtype),
               gate_up = values({kRows, 2 * kWidth}, 3, dtype), bias = values({kWidth}, 4, dtype);
  std::vector<Call> calls{
      {"swiglu", {gate_up}, [](Tensors& t) { return Tensors{kernels::swiglu(t[0])}; }},
      {"swiglu_backward",
       {dy, gate_up},
       [](Tensors& t) { return Tensors{kernels::swiglu_backward(t[0], t[1])}; }},
      {"dropout",
       {x},
       [](Tensors& t) { return Tensors{kernels::dropout(t[0], 0.25, kernels::RandomKey::of(7), 12345)}; }},
  };
  for (const kernels::Gelu form : {kernels::Gelu::erf, kernels::Gelu::tanh}) {
    const std::string name = form == kernels::Gelu::erf ? "erf" : "tanh";
    calls.push_back({"gelu " + name, {x, bias}, [form](Tensors& t) {
                       return Tensors{kernels::gelu(t[0], t[1], form), kernels::gelu(t[0], {}, form)};
                     }});
    calls.push_back({"gelu_backward " + name, {dy, x, bias, sums({kWidth})}, [form](Tensors& t) {
                       return Tensors{kernels::gelu_backward(t[0], t[1], t[2], form, t[3]),
                                      kernels::gelu_backward(t[0], t[1], {}, form, {}), t[3]};
                     }});
  }
  return calls;
}

std::vector<Call> vocabulary_calls(at::ScalarType dtype) {
  const Tensor ids = at::tensor({3, 9, 4, 3, 12}, at::kLong),
               labels = at::tensor({3, -1, 4, 8, 12}, at::kLong), table = values({6, kWidth}, 1, dtype),
               dy = values({kRows, kWidth}, 2, dtype), logits = values({kRows, 7}, 3, dtype);
  const kernels::TokenLoss loss{.label_smoothing = 0.125, .z_loss = 0.25, .vocab = 14};
  return {
      {"embedding",
       {ids, table},
       [](Tensors& t) {
         Tensor y = at::empty({kRows, kWidth}, t[1].options());
         kernels::embedding_out(y, t[0], t[1], /*begin=*/3);
         return Tensors{y};
       }},
      {"embedding_backward",
       {sums({6, kWidth}), dy, ids},
       [](Tensors& t) {
         kernels::embedding_backward_(t[0], t[1], t[2], /*begin=*/3);
         return Tensors{t[0]};
       }},
      {"loss_terms",
       {logits, labels},
       [loss](Tensors& t) {
         return Tensors{kernels::loss_terms(t[0], t[1], /*begin=*/4, loss),
                        kernels::loss_terms(t[0], t[1], 4)};
       }},
      {"log_sums",
       {values({2, 3, kRows}, 5, at::kFloat).abs()},
       [](Tensors& t) { return Tensors{kernels::log_sums(t[0])}; }},
      {"cross_entropy_backward",
       {logits, labels, sums({kRows})},
       [loss](Tensors& t) {
         kernels::cross_entropy_backward_(t[0], t[1], /*begin=*/4, t[2],
                                          {.scale = 0.5, .ignore_index = -1, .loss = loss});
         return Tensors{t[0]};
       }},
  };
}

std::vector<Call> product_calls(at::ScalarType dtype) {
  const Tensor x = values({kRows, kWidth}, 1, dtype), weight = values({7, kWidth}, 2, dtype),
               dy = values({kRows, 7}, 3, dtype);
  return {
      {"product",
       {x, weight},
       [](Tensors& t) {
         Tensor y = at::empty({kRows, 7}, t[0].options());
         kernels::product_out(y, t[0], t[1].t());
         return Tensors{y};
       }},
      {"add_weight_grad",
       {sums({7, kWidth}), dy, x},
       [](Tensors& t) {
         kernels::add_weight_grad_(t[0], t[1], t[2]);
         return Tensors{t[0]};
       }},
      {"add_bias_grad",
       {sums({7}), dy},
       [](Tensors& t) {
         kernels::add_bias_grad_(t[0], t[1]);
         return Tensors{t[0]};
       }},
  };
}

/// 3 query heads and 1 KV head of 8 features, of which 6 are rotated, of 5 tokens of 2 sequences.
kernels::HeadSplit split_by(const Tensor& cos, const Tensor& sin) {
  return {.heads = 3, .kv_heads = 1, .head_dim = 8, .tables = {cos, sin}, .first_position = 1};
}

std::vector<Call> head_calls(at::ScalarType dtype) {
  const Tensor qkv = values({kRows, 2, 5 * 8}, 1, dtype), weight = values({8}, 2, dtype),
               q = values({2, 3, kRows, 8}, 3, dtype), kv = values({2, 1, kRows, 8}, 4, dtype);
  const auto [cos, sin] = kernels::rotary_tables({1, 0.1, 0.01}, /*positions=*/9, at::kFloat);
  const auto all = [](const kernels::Qkv& heads) { return Tensors{heads.q, heads.k, heads.v}; };
  return {
      {"split_rotary",
       {qkv, cos, sin},
       [=](Tensors& t) { return all(kernels::split_rotary(t[0], split_by(t[1], t[2]))); }},
      {"split_rotary of padded sequences",
       {qkv, cos, sin},
       [=](Tensors& t) {
         kernels::HeadSplit split = split_by(t[1], t[2]);
         split.valid = {{2, 5}, {0, 4}};
         return all(kernels::split_rotary(t[0], split));
       }},
      {"split_rotary at positions of sequences",
       {qkv, cos, sin},
       [=](Tensors& t) {
         kernels::HeadSplit split = split_by(t[1], t[2]);
         split.first_positions = {4, 0};
         return all(kernels::split_rotary(t[0], split));
       }},
      {"split_rotary_backward",
       {q, kv, kv, cos, sin},
       [=](Tensors& t) {
         return Tensors{kernels::split_rotary_backward({t[0], t[1], t[2]}, split_by(t[3], t[4]))};
       }},
      {"split_norm_rotary",
       {qkv, cos, sin, weight, weight},
       [=](Tensors& t) {
         return all(kernels::split_norm_rotary(t[0], split_by(t[1], t[2]), {{t[3], t[4]}, 1e-5}));
       }},
      {"split_norm_rotary_backward",
       {q, kv, kv, qkv, cos, sin, weight, weight, sums({8}), sums({8})},
       [=](Tensors& t) {
         const Tensor d_qkv = kernels::split_norm_rotary_backward(
             {t[0], t[1], t[2]}, t[3], split_by(t[4], t[5]), {{t[6], t[7]}, 1e-5}, {t[8], t[9]});
         return Tensors{d_qkv, t[8], t[9]};
       }},
  };
}

std::vector<Call> attention_calls(at::ScalarType dtype) {
  const Tensor q = values({2, 3, kRows, 8}, 1, dtype), k = values({2, 2, kRows, 8}, 2, dtype),
               v = values({2, 2, kRows, 8}, 3, dtype), d_out = values({kRows, 2, 24}, 4, dtype);
  const kernels::AttentionOptions options{
      .kv_of_head = {0, 0, 1},
      .window = 4,
      .dropout = {.p = 0.25, .key = kernels::RandomKey::of(3), .first_head = 1, .all_heads = 6}};
  return {
      {"attention and its backward",
       {q, k, v, d_out},
       [options](Tensors& t) {
         const kernels::Qkv qkv{t[0], t[1], t[2]};
         const auto result = kernels::attention(qkv, options);
         const auto grads = kernels::attention_backward(t[3], qkv, result, options);
         return Tensors{result.out, result.lse, grads.q, grads.k, grads.v};
       }},
      {"cached_attention",
       {q.narrow(2, 0, 1), k.narrow(2, 0, 1), v.narrow(2, 0, 1), k, v},
       [](Tensors& t) {
         std::vector<kernels::CachedHeads> caches;
         for (int i = 0; i < 2; ++i) caches.push_back({{t[3][i], {}}, {t[4][i], {}}, 3 - 2 * i});
         const Tensor out = kernels::cached_attention({t[0], t[1], t[2]}, caches, {.kv_of_head = {0, 0, 1}});
         return Tensors{out, t[3], t[4]};
       }},
  };
}

std::vector<Call> all_calls(at::ScalarType dtype) {
  std::vector<Call> all;
  for (const auto& some : {norm_calls(dtype), activation_calls(dtype), vocabulary_calls(dtype),
                           product_calls(dtype), head_calls(dtype), attention_calls(dtype)})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

/// Returns contiguous copies of the tensors there.
Tensors copies_on(const Tensors& tensors, at::Device device) {
  Tensors copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone().contiguous().to(device));
  return copies;
}

/// The CPU rounds to the dtype, and computes in fp32 in another order.
double error_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : 1.0 / 128;
}

class DeviceKernels : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(DeviceKernels, GiveWhatTheCpuGives) {
  const at::Device device = testing::on_device().device();
  for (const Call& call : all_calls(GetParam())) {
    SCOPED_TRACE(call.name);
    Tensors here = copies_on(call.arguments, at::kCPU), there = copies_on(call.arguments, device);
    const Tensors expected = call.call(here), got = call.call(there);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[i].device(), device) << "result " << i;
      EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << "result " << i;
      EXPECT_LT(testing::relative_error(got[i].cpu(), expected[i]), error_of(GetParam())) << "result " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceKernels, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(DeviceKernel, RefuseTensorsOnTwoDevices) {
  const at::Device device = testing::on_device().device();
  for (const Call& call : all_calls(at::kFloat)) {
    if (call.arguments.size() == 1 || call.name == "add_rms_norm") continue;
    const Tensors there = copies_on(call.arguments, device);
    for (size_t i = 0; i < there.size(); ++i) {
      Tensors mixed = copies_on(call.arguments, at::kCPU);
      mixed[i] = there[i];
      EXPECT_NE(test::error_text([&] { call.call(mixed); }).find(device.str()), std::string::npos)
          << call.name << ", argument " << i;
    }
  }
}

TEST(DeviceKernel, RefuseFp64) {
  const at::Device device = testing::on_device().device();
  const Tensor x = values({kRows, 2 * kWidth}, 1, at::kDouble).to(device);
  EXPECT_EQ(test::error_text([&] { kernels::swiglu(x); }),
            "swiglu: a GPU's dtype must be fp32, bf16 or fp16; got Double");
}

TEST(DeviceKernel, FindNanAndInf) {
  const at::Device device = testing::on_device().device();
  Tensor x = values({kRows, kWidth}, 1, at::kFloat).to(device);
  EXPECT_FALSE(kernels::first_nan_or_inf(x));
  x[1][2].fill_(INFINITY);
  EXPECT_EQ(kernels::first_nan_or_inf(x), INFINITY);
}

}  // namespace
}  // namespace shardwise::device_test
