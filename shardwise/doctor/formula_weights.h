// The tensors of a checkpoint as named in the formulas, read by the names of transformers' modules. This
// table is independent of config/family*, so that a wrong line in either is found.
//
// Sources of names, order of fused rows and Conv1D's transposition: transformers, modeling_llama.py (and
// mistral, qwen2, qwen3), modeling_phi3.py, modeling_gpt2.py, pytorch_utils.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "shardwise/config/config.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::doctor {

/// Weight and bias of a linear layer, [out, in] and [out], or of a norm, both [h]. Undefined if not stored.
struct Affine {
  at::Tensor weight, bias;
};

/// One layer. q_norm, k_norm and gate are undefined if the architecture has none.
struct FormulaLayer {
  Affine attention_norm, q, k, v, q_norm, k_norm, o;
  Affine mlp_norm, gate, up, down;
};

/// Embeddings, final norm and head. A tied head is the embedding.
struct FormulaOuterWeights {
  at::Tensor embedding, positions;  // [v, h], and [positions, h] if learned
  Affine norm, head;
};

/// A directory of dense weights; each tensor is converted to fp64 when read.
class StandardWeights {
 public:
  /// Errors: those of io::SafetensorsDirectory.
  StandardWeights(const std::filesystem::path& directory, const model::Config& config);

  FormulaOuterWeights outer_weights() const;
  FormulaLayer layer(int64_t number) const;

 private:
  FormulaLayer llama_layer(const std::string& layer) const;
  FormulaLayer phi3_layer(const std::string& layer) const;
  FormulaLayer gpt2_layer(const std::string& layer) const;
  FormulaOuterWeights gpt2_outer_weights() const;

  bool has(const std::string& name) const { return files_.contains(name); }
  at::Tensor tensor(const std::string& name) const;
  at::Tensor tensor_if_stored(const std::string& name) const;
  Affine affine(const std::string& module) const;
  Affine conv1d(const std::string& module) const;
  /// "transformer.", or an empty string for files of the model without a head.
  std::string gpt2_prefix() const;

  io::SafetensorsDirectory files_;
  const model::Config& config_;
};

}  // namespace shardwise::doctor
