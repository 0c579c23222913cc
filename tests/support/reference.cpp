#include "tests/support/reference.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numbers>

#include "tests/support/reference_layers.h"

namespace shardwise::testing {
namespace {

at::Tensor masked(const at::Tensor& x, const Masks& masks, size_t site, const Lookup& w) {
  return masks.stream.empty() ? x : w.rounding.stored(x * masks.stream.at(site), {});
}

// Positions count from a sequence's first token.
at::Tensor with_positions(const at::Tensor& embedded, const config::Config& config, const Batch& batch,
                          const Lookup& w) {
  const at::Tensor x = w.rounding.stored(embedded, {});
  if (config.positions != config::Positions::learned) return x;
  at::Tensor positions = at::arange(x.size(0), at::kLong).unsqueeze(1).repeat({1, x.size(1)});
  for (size_t i = 0; i < batch.valid.size(); ++i) positions.select(1, i).sub_(batch.valid[i].begin);
  const at::Tensor rows = at::embedding(w("model.embed_positions.weight"), positions.clamp_min(0));
  return w.rounding.stored(x + rows, {});
}

// Computes the logits from the embedding's output.
at::Tensor decode(const at::Tensor& embedded, const config::Config& config, const Batch& batch,
                  const Masks& masks, const Lookup& w) {
  at::Tensor x = masked(with_positions(embedded, config, batch, w), masks, 0, w);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const auto norm = [&](const char* which) { return reference_norm(x, name + which, config.norm_eps, w); };
    const at::Tensor mask = masks.attention.empty() ? at::Tensor() : masks.attention.at(layer);
    const bool slides =
        config.sliding_window && (config.sliding_layers.empty() || config.sliding_layers[layer]);
    const at::Tensor attended =
        reference_attention(norm("input_layernorm"), name + "self_attn.", config,
                            slides ? config.sliding_window : std::nullopt, batch, mask, w);
    x = w.rounding.stored(x + masked(attended, masks, 1 + 2 * layer, w), {});
    const at::Tensor expanded =
        reference_mlp(norm("post_attention_layernorm"), name + "mlp.", config.activation, w);
    x = w.rounding.stored(x + masked(expanded, masks, 2 + 2 * layer, w), {});
  }
  const std::string head = config.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
  const at::Tensor last = reference_norm(x, "model.norm", config.norm_eps, w);
  return w.column(w.column_input(last, config.vocab_size), head);
}

}  // namespace

ReferenceResult reference_step(const config::Config& config, const Tensors& weights, const Batch& batch,
                               const Masks& masks, const Rounding& rounding) {
  const Lookup w{weights, rounding, batch.ids.numel()};
  const at::Tensor embedded = at::embedding(w("model.embed_tokens.weight"), batch.ids);
  const at::Tensor logits = decode(embedded, config, batch, masks, w);
  const at::Tensor loss = reference_loss(logits, batch, w);

  std::vector<std::string> names;
  std::vector<at::Tensor> wanted = {embedded};
  for (const auto& [name, weight] : weights) {
    names.push_back(name);
    wanted.push_back(weight);
  }
  const auto gradients = torch::autograd::grad({loss}, wanted);
  ReferenceResult result{logits.detach(), loss.item<double>(), {}, gradients[0]};
  for (size_t i = 0; i < names.size(); ++i) result.gradients[names[i]] = gradients[i + 1];
  return result;
}

std::vector<double> reference_frequencies(const config::Config& config) {
  std::vector<double> frequencies;
  const auto turned = static_cast<int64_t>(config.head_dim * config.partial_rotary_factor);
  for (int64_t i = 0; i < turned / 2; ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * i / turned);
    if (const auto& scaling = config.rope_scaling) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double context = scaling->original_max_position_embeddings;
      if (wavelength > context / scaling->low_freq_factor) {
        frequency /= scaling->factor;
      } else if (wavelength > context / scaling->high_freq_factor) {
        const double smooth = (context / wavelength - scaling->low_freq_factor) /
                              (scaling->high_freq_factor - scaling->low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling->factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace shardwise::testing
