#include "shardwise/bench/kernel_cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/rotary.h"
#include "shardwise/kernels/swiglu.h"

namespace shardwise::bench {

using at::Tensor;
using Tensors = std::vector<Tensor>;

namespace {

constexpr double kEps = 1e-6;
constexpr int64_t kHeadDim = 128;

int64_t bytes_of(std::initializer_list<Tensor> tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

Tensor leaf(const Tensor& x) {
  return x.detach().clone().requires_grad_();
}

Tensor gradient_like(const Tensor& y) {
  return random_tensor(y.sizes().vec(), y.scalar_type(), /*seed=*/8);
}

/// Returns a call of the backward of y over `inputs`.
std::function<Tensors()> backward_of(const Tensors& y, const Tensors& inputs, const Tensors& dy) {
  return [=] { return torch::autograd::grad(y, inputs, dy, /*retain_graph=*/true); };
}

void append_rms_norm(std::vector<KernelCase>& cases, const Tensor& x) {
  const Tensor w = at::ones({x.size(-1)}, x.options()), dy = gradient_like(x);
  Tensor y = x.clone(), rstd = at::zeros({x.size(0)}), gradient = at::zeros({x.size(-1)});
  kernels::rms_norm_out(y, rstd, x, w, kEps);
  const Tensor x_leaf = leaf(x), w_leaf = leaf(w);
  cases.push_back({"rms_norm forward", bytes_of({x, y}),
                   [=] { return Tensors{kernels::rms_norm(x, w, kEps)}; },
                   [=] { return Tensors{at::rms_norm(x, {x.size(-1)}, w, kEps)}; }});
  cases.push_back({"rms_norm backward", bytes_of({dy, x, y}),
                   [=] { return Tensors{kernels::rms_norm_backward(dy, x, w, rstd, gradient)}; },
                   backward_of({at::rms_norm(x_leaf, {x.size(-1)}, w_leaf, kEps)}, {x_leaf, w_leaf}, {dy})});
}

void append_layer_norm(std::vector<KernelCase>& cases, const Tensor& x) {
  const int64_t h = x.size(-1);
  const Tensor w = at::ones({h}, x.options()), b = at::zeros({h}, x.options()), dy = gradient_like(x);
  Tensor y = x.clone();
  kernels::RowMoments moments{at::zeros({x.size(0)}), at::zeros({x.size(0)})};
  kernels::layer_norm_out(y, moments, x, {w, b}, kEps);
  const kernels::Affine gradients{at::zeros({h}), at::zeros({h})};
  const Tensor x_leaf = leaf(x), w_leaf = leaf(w), b_leaf = leaf(b);
  cases.push_back({"layer_norm forward", bytes_of({x, y}),
                   [=] {
                     return Tensors{kernels::layer_norm(x, {w, b}, kEps)};
                   },
                   [=] { return Tensors{at::layer_norm(x, {h}, w, b, kEps)}; }});
  cases.push_back(
      {"layer_norm backward", bytes_of({dy, x, y}),
       [=] { return Tensors{kernels::layer_norm_backward(dy, x, w, moments, gradients)}; },
       backward_of({at::layer_norm(x_leaf, {h}, w_leaf, b_leaf, kEps)}, {x_leaf, w_leaf, b_leaf}, {dy})});
}

void append_gelu(std::vector<KernelCase>& cases, const Tensor& x) {
  const Tensor bias = at::ones({x.size(-1)}, x.options()), dy = gradient_like(x);
  const Tensor gradient = at::zeros({x.size(-1)}), x_leaf = leaf(x), bias_leaf = leaf(bias);
  cases.push_back({"gelu and bias forward", bytes_of({x, x}),
                   [=] { return Tensors{kernels::gelu(x, bias, kernels::Gelu::tanh)}; },
                   [=] { return Tensors{at::gelu(x + bias, "tanh")}; }});
  cases.push_back(
      {"gelu and bias backward", bytes_of({dy, x, x}),
       [=] { return Tensors{kernels::gelu_backward(dy, x, bias, kernels::Gelu::tanh, gradient)}; },
       backward_of({at::gelu(x_leaf + bias_leaf, "tanh")}, {x_leaf, bias_leaf}, {dy})});
}

Tensor torch_swiglu(const Tensor& gate, const Tensor& up) {
  return at::silu(gate) * up;
}

void append_swiglu(std::vector<KernelCase>& cases, const Tensor& x) {
  const int64_t f = x.size(-1) / 2;
  const Tensors halves = x.split(f, /*dim=*/-1);
  const Tensor gate = halves[0].contiguous(), up = halves[1].contiguous(), gate_leaf = leaf(gate),
               up_leaf = leaf(up);
  const Tensor dy = gradient_like(gate);
  // PyTorch's models have gate and up as two tensors.
  cases.push_back({"swiglu forward", bytes_of({x, dy}), [=] { return Tensors{kernels::swiglu(x)}; },
                   [=] { return Tensors{torch_swiglu(gate, up)}; }});
  cases.push_back({"swiglu backward", bytes_of({dy, x, x}),
                   [=] { return kernels::swiglu_backward(dy, x).split(f, /*dim=*/-1); },
                   backward_of({torch_swiglu(gate_leaf, up_leaf)}, {gate_leaf, up_leaf}, {dy})});
}

/// As transformers rotates: heads [b, a, s, d] of q and k, each by cat, two products and a sum.
Tensor torch_rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensors halves = x.split(kHeadDim / 2, /*dim=*/-1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

Tensors tensors_of(const kernels::Qkv& qkv) {
  return {qkv.q, qkv.k, qkv.v};
}

void append_rotary(std::vector<KernelCase>& cases, const Tensor& x) {
  const int64_t s = x.size(0), heads = x.size(-1) / kHeadDim, kv_heads = std::max<int64_t>(heads / 4, 1),
                features = (heads + 2 * kv_heads) * kHeadDim;
  const Tensor qkv = random_tensor({s, 1, features}, x.scalar_type());
  std::vector<double> frequencies;
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(std::pow(1e4, -2. * i / kHeadDim));
  const kernels::HeadSplit split{heads, kv_heads, kHeadDim,
                                 kernels::rotary_tables(frequencies, s, at::kFloat)};
  const Tensor cos = at::cat({split.tables.cos, split.tables.cos}, -1).to(x.scalar_type()),
               sin = at::cat({split.tables.sin, split.tables.sin}, -1).to(x.scalar_type());
  const auto head_views = [=](const Tensor& all, int64_t first, int64_t count) {
    return all.narrow(/*dim=*/-1, first * kHeadDim, count * kHeadDim)
        .view({s, 1, count, kHeadDim})
        .permute({1, 2, 0, 3});
  };
  const auto rotated = [=](const Tensor& all) -> Tensors {
    return {torch_rotated(head_views(all, 0, heads), cos, sin),
            torch_rotated(head_views(all, heads, kv_heads), cos, sin),
            head_views(all, heads + kv_heads, kv_heads)};
  };
  const kernels::Qkv gradients = kernels::split_rotary(qkv, split);
  const Tensor qkv_leaf = leaf(qkv);
  cases.push_back({"rotary forward", bytes_of({qkv, qkv}),
                   [=] { return tensors_of(kernels::split_rotary(qkv, split)); },
                   [=] { return rotated(qkv); }});
  cases.push_back({"rotary backward", bytes_of({qkv, qkv}),
                   [=] { return Tensors{kernels::split_rotary_backward(gradients, split)}; },
                   backward_of(rotated(qkv_leaf), {qkv_leaf}, tensors_of(gradients))});
}

Tensor mean_loss(const Tensor& logits, const Tensor& labels) {
  const Tensor terms = kernels::loss_terms(logits, labels, /*begin=*/0);
  return (terms[0] + terms[1].log() - terms[2]).mean();
}

void append_cross_entropy(std::vector<KernelCase>& cases, const Tensor& x) {
  const int64_t v = 16 * x.size(-1), n = std::max<int64_t>(x.numel() / v, 1);
  const Tensor logits = random_tensor({n, v}, x.scalar_type()), logits_leaf = leaf(logits);
  const Tensor labels = at::randint(0, v, {n}, at::make_generator<at::CPUGeneratorImpl>(5), at::kLong);
  const Tensor terms = kernels::loss_terms(logits, labels, 0), lse = terms[0] + terms[1].log();
  Tensor gradient = logits.clone();  // in place: after some runs all gradients are zero, which is as fast
  cases.push_back({"cross_entropy forward", bytes_of({logits}),
                   [=] { return Tensors{mean_loss(logits, labels)}; },
                   [=] { return Tensors{at::cross_entropy_loss(logits, labels)}; }});
  cases.push_back({"cross_entropy backward", bytes_of({logits, logits}),
                   [=]() mutable {
                     kernels::cross_entropy_backward_(gradient, labels, 0, lse, {1. / n, -100});
                     return Tensors{gradient};
                   },
                   backward_of({at::cross_entropy_loss(logits_leaf, labels)}, {logits_leaf},
                               {at::ones({}, x.options())})});
}

struct Family {
  std::string_view name;
  void (*append)(std::vector<KernelCase>&, const Tensor&);
};

constexpr Family kFamilies[] = {{"rms_norm", append_rms_norm}, {"layer_norm", append_layer_norm},
                                {"gelu", append_gelu},         {"swiglu", append_swiglu},
                                {"rotary", append_rotary},     {"cross_entropy", append_cross_entropy}};

}  // namespace

Tensor random_tensor(const std::vector<int64_t>& shape, at::ScalarType dtype, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat).to(dtype);
}

std::vector<KernelCase> kernel_cases(const std::string& family, int64_t rows, int64_t width,
                                     at::ScalarType dtype) {
  const auto* const found = std::ranges::find(kFamilies, family, &Family::name);
  TORCH_INTERNAL_ASSERT(found != std::end(kFamilies));
  std::vector<KernelCase> cases;
  found->append(cases, random_tensor({rows, width}, dtype));
  return cases;
}

std::vector<std::string> kernel_families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

}  // namespace shardwise::bench
