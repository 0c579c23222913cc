#include "tests/support/reference_layers.h"

#include <ATen/ops/erf.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include <cmath>
#include <numbers>

namespace shardwise::testing {

at::Tensor Lookup::matmul(const at::Tensor& x, const std::string& name) const {
  return at::matmul(x, (*this)(name + ".weight").t());
}

at::Tensor Lookup::column(const at::Tensor& x, const std::string& name) const {
  const at::Tensor y = matmul(x, name);
  return rounding.stored(has(name + ".bias") ? y + (*this)(name + ".bias") : y, {.value = x.size(-1)});
}

at::Tensor Lookup::row(const at::Tensor& x, const std::string& name) const {
  const at::Tensor term = rounding.stored(matmul(x, name), {.value = x.size(-1)});
  const at::Tensor sum = rounding.stored(term, {});
  return has(name + ".bias") ? rounding.stored(sum + (*this)(name + ".bias"), {}) : sum;
}

at::Tensor Lookup::column_input(const at::Tensor& x, int64_t outputs) const {
  return rounding.branch(rounding.branch(x, 1), outputs);
}

at::Tensor reference_norm(const at::Tensor& x, const std::string& name, double eps, const Lookup& w) {
  const int64_t size = x.size(-1);
  const bool is_layer_norm = w.has(name + ".bias");
  at::Tensor in = w.rounding.branch(x, size);
  if (is_layer_norm) in = in - w.rounding.kept(in.mean(-1, /*keepdim=*/true), {size, size});
  const at::Tensor rstd = at::rsqrt((in * in).mean(-1, /*keepdim=*/true) + eps);
  const at::Tensor scaled = in * w.rounding.kept(rstd, {size, size}) * w(name + ".weight");
  return w.rounding.stored(is_layer_norm ? scaled + w(name + ".bias") : scaled, {});
}

namespace {

at::Tensor silu_of(const at::Tensor& x) {
  return x * at::sigmoid(x);
}

at::Tensor gelu_tanh(const at::Tensor& x) {
  const double scale = std::sqrt(2 / std::numbers::pi);
  return 0.5 * x * (1 + at::tanh(scale * (x + 0.044715 * x * x * x)));
}

at::Tensor exact_gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + at::erf(x / std::numbers::sqrt2));
}

}  // namespace

at::Tensor reference_mlp(const at::Tensor& x, const std::string& name, config::Activation activation,
                         const Lookup& w) {
  const int64_t ffn = w.weights.at(name + "up_proj.weight").size(0);
  const auto inner = [&] {
    if (activation == config::Activation::silu_gated) {
      const at::Tensor in = w.column_input(x, 2 * ffn);
      return silu_of(w.column(in, name + "gate_proj")) * w.column(in, name + "up_proj");
    }
    const at::Tensor up = w.column(w.column_input(x, ffn), name + "up_proj");
    return activation == config::Activation::gelu ? exact_gelu(up) : gelu_tanh(up);
  };
  return w.row(w.rounding.stored(inner(), {.gradient = x.size(-1)}), name + "down_proj");
}

at::Tensor reference_loss(const at::Tensor& logits, const Batch& batch, const Lookup& w) {
  const double smoothing = batch.label_smoothing;
  const at::Tensor ignored = batch.labels == -100;
  const at::Tensor label = batch.labels.masked_fill(ignored, 0).unsqueeze(-1);
  // The log-sum-exp is saved, and backward recomputes the probabilities from it.
  const at::Tensor lse = w.rounding.kept(at::logsumexp(logits, {-1}, /*keepdim=*/true), {logits.size(-1)});
  at::Tensor wanted = logits.gather(-1, label) * (1 - smoothing);
  if (smoothing > 0) wanted = wanted + smoothing * logits.mean(-1, /*keepdim=*/true);
  const at::Tensor token_loss = w.rounding.kept(lse - wanted + batch.z_loss * lse * lse, {}).squeeze(-1);
  const at::Tensor sum = token_loss.masked_fill(ignored, 0).sum();
  return w.rounding.kept(sum / batch.valid_tokens, {.value = w.tokens});
}

}  // namespace shardwise::testing
