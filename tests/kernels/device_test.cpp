// Kernels refuse tensors that are not on the CPU before they touch one, whichever argument it is.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <string>

#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/dropout.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/kernels/finite.h"
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/random.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/swiglu.h"
#include "tests/kernels/support.h"
#include "tests/support/error_text.h"

namespace shardwise::kernels::device_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Op {
  std::string name;
  Tensors arguments;
  std::function<void(Tensors& arguments)> call;
};

at::Tensor ids() {
  return at::zeros({3}, at::kLong);
}

std::vector<Op> forward_ops() {
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
      {"row_max", {x}, [](Tensors& t) { row_max(t[0]); }},
      {"loss_sums", {x, ids(), row.narrow(0, 0, 3)}, [](Tensors& t) { loss_sums(t[0], t[1], 0, t[2]); }},
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
  };
}

std::vector<Op> backward_ops() {
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
       [](Tensors& t) { cross_entropy_backward(t[0], t[1], 0, t[2], {.scale = 1, .ignore_index = -1}); }},
      {"embedding_backward",
       {at::zeros({5, 8}), x, ids()},
       [](Tensors& t) { embedding_backward_(t[0], t[1], t[2], 0); }},
      {"add_weight_grad", {at::zeros({8, 8}), x, x}, [](Tensors& t) { add_weight_grad_(t[0], t[1], t[2]); }},
      {"add_bias_grad", {at::zeros({8}), x}, [](Tensors& t) { add_bias_grad_(t[0], t[1]); }},
  };
}

void expect_refused(const Op& op) {
  SCOPED_TRACE(op.name);
  Tensors on_cpu = op.arguments;
  EXPECT_NO_THROW(op.call(on_cpu));
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    Tensors arguments = op.arguments;
    arguments[i] = at::empty(arguments[i].sizes(), arguments[i].options().device(at::kMeta));
    EXPECT_EQ(test::error_text([&] { op.call(arguments); }),
              op.name + ": tensors must be on the CPU; got meta; copy them there with .cpu()")
        << "argument " << i;
  }
}

TEST(Device, KernelsRefuseTensorsThatAreNotOnTheCpu) {
  for (const Op& op : forward_ops()) expect_refused(op);
  for (const Op& op : backward_ops()) expect_refused(op);
}

}  // namespace
}  // namespace shardwise::kernels::device_test
