// An unsharded decoder from the published formulas in plain ATen operators with ordinary autograd: what the
// sharded one must equal.
//
// It shares no arithmetic with shardwise/: only the dropout masks, which are an input of the function, are
// those of the unsharded model (that their sites are independent is nn/dropout_test's). Sources: Touvron et
// al. 2023 (Llama), Radford et al. 2018 (GPT), Ba et al. 2016 (LayerNorm), Hendrycks & Gimpel 2016 (GELU),
// Jiang et al. 2023 (sliding window), Szegedy et al. 2016 (label smoothing), Chowdhery et al. 2022 (z-loss);
// transformers, modeling_llama.py, modeling_qwen3.py and modeling_rope_utils.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "shardwise/kernels/random.h"
#include "shardwise/model/config.h"
#include "tests/support/rounding.h"

namespace shardwise::testing {

/// Whole tensors by Hugging Face name.
using Tensors = std::map<std::string, at::Tensor>;

/// The shape of every tensor that a checkpoint of this model holds (a tied head is none of its own).
std::map<std::string, std::vector<int64_t>> stored_shapes(const model::Config& config);

/// Leaves that require grad, drawn so that activations and gradients are of order one: normal(0,
/// 1/sqrt(fan_in)), norm weights and biases away from their defaults of one and zero.
Tensors random_weights(const model::Config& config, uint64_t seed, at::ScalarType dtype);

/// One micro-batch, and what is minimized on it.
struct Batch {
  at::Tensor ids;     // [s, b] int64
  at::Tensor labels;  // [s, b] int64, −100 where none is wanted
  double valid_tokens;
  std::vector<base::Range> valid = {};  // the positions of each sequence that hold tokens; empty: all
  double label_smoothing = 0, z_loss = 0;
};

/// Random ids and labels; every fifth label is ignored, and `valid_tokens` counts more than this batch's, as
/// if it were one of several.
Batch random_batch(const model::Config& config, int64_t sequence, int64_t batch, uint64_t seed);

/// Probabilities of dropping: on the residual stream, and of attention's probabilities.
struct Dropout {
  double stream = 0, attention = 0;
};

/// What dropout multiplies by, zeros and 1/(1−p); each list is empty where its p is 0.
struct Masks {
  std::vector<at::Tensor> stream;     // [s, b, h]: the embedding's, then each layer's two
  std::vector<at::Tensor> attention;  // [b, a, s, s] of each layer
};

/// The masks of the unsharded model.
Masks dropout_masks(const model::Config& config, const Batch& batch, const Dropout& p, kernels::RandomKey key,
                    at::ScalarType dtype);

struct ReferenceResult {
  at::Tensor logits;  // [s, b, v]
  double loss;
  Tensors gradients;          // by name
  at::Tensor input_gradient;  // of the embedding's output [s, b, h]
};

/// Forward and backward in the dtype of `weights`; they accumulate no gradient. `rounding` disturbs what a
/// program would store.
ReferenceResult reference_step(const model::Config& config, const Tensors& weights, const Batch& batch,
                               const Masks& masks, const Rounding& rounding = {});

/// Rotary frequencies by their formulas, Llama 3's scaling included.
std::vector<double> reference_frequencies(const model::Config& config);

}  // namespace shardwise::testing
