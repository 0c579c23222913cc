// The unsharded reference decoder, written from the published formulas in plain ATen operators with autograd.
//
// It shares no arithmetic with shardwise/. Only the dropout masks, which are an input, come from the
// unsharded model (nn/dropout_test checks that sites are independent). Sources: Touvron et al. 2023 (Llama),
// Radford et al. 2018 (GPT), Ba et al. 2016 (LayerNorm), Hendrycks & Gimpel 2016 (GELU), Jiang et al. 2023
// (sliding window), Szegedy et al. 2016 (label smoothing), Chowdhery et al. 2022 (z-loss); transformers,
// modeling_llama.py, modeling_qwen3.py and modeling_rope_utils.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/kernels/random.h"
#include "tests/support/rounding.h"

namespace shardwise::testing {

/// Unsharded tensors by Hugging Face name.
using Tensors = std::map<std::string, at::Tensor>;

/// Returns the shapes of all tensors in a checkpoint of this model (a tied head is not a separate tensor).
std::map<std::string, std::vector<int64_t>> stored_shapes(const config::Config& config);

/// Returns random leaf tensors that require grad, scaled so that activations and gradients are of order one:
/// normal(0, 1/sqrt(fan_in)), with norm weights and biases that differ from one and zero.
Tensors random_weights(const config::Config& config, uint64_t seed, at::ScalarType dtype);

/// One micro-batch and the options of its loss.
struct Batch {
  at::Tensor ids;     // [s, b] int64
  at::Tensor labels;  // [s, b] int64, −100: ignored
  double valid_tokens;
  std::vector<base::Range> valid = {};  // positions of each sequence that are not padding; empty: all
  double label_smoothing = 0, z_loss = 0;
};

/// Returns random ids and labels. Every fifth label is ignored, and `valid_tokens` is larger than this
/// batch's count, as for one of several micro-batches.
Batch random_batch(const config::Config& config, int64_t sequence, int64_t batch, uint64_t seed);

/// Dropout probabilities of the residual stream and of attention's probabilities.
struct Dropout {
  double stream = 0, attention = 0;
};

/// Dropout factors, 0 or 1/(1−p); a list is empty if its p is 0.
struct Masks {
  std::vector<at::Tensor> stream;     // [s, b, h]: the embedding's, then each layer's two
  std::vector<at::Tensor> attention;  // [b, a, s, s] of each layer
};

/// Returns the masks of the unsharded model.
Masks dropout_masks(const config::Config& config, const Batch& batch, const Dropout& p,
                    kernels::RandomKey key, at::ScalarType dtype);

struct ReferenceResult {
  at::Tensor logits;  // [s, b, v]
  double loss;
  Tensors gradients;          // by name
  at::Tensor input_gradient;  // of the embedding's output [s, b, h]
};

/// Runs forward and backward in the dtype of `weights`, without accumulating gradients into them. `rounding`
/// perturbs the tensors that a program would store.
ReferenceResult reference_step(const config::Config& config, const Tensors& weights, const Batch& batch,
                               const Masks& masks, const Rounding& rounding = {});

/// Returns the rotary frequencies, including Llama 3's scaling.
std::vector<double> reference_frequencies(const config::Config& config);

}  // namespace shardwise::testing
