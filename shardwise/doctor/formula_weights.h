// The tensors of a checkpoint by what the formulas call them, read from the names that transformers' modules
// give them: another table than model/family*'s, so that a wrong line in either shows.
//
// Names, orders of fused rows and Conv1D's transposition: transformers, modeling_llama.py (and mistral,
// qwen2, qwen3), modeling_phi3.py, modeling_gpt2.py, pytorch_utils.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "shardwise/io/safetensors.h"
#include "shardwise/model/config.h"

namespace shardwise::doctor {

/// Of a linear layer, [out, in] and [out], or of a norm, [h] both. What the files do not have is undefined.
struct Affine {
  at::Tensor weight, bias;
};

/// One layer. Undefined: q_norm and k_norm of heads that are not normed, the gate of an MLP without one.
struct FormulaLayer {
  Affine attention_norm, q, k, v, q_norm, k_norm, o;
  Affine mlp_norm, gate, up, down;
};

/// What comes before and behind the layers. The head of a tied model is its embedding.
struct FormulaEnds {
  at::Tensor embedding, positions;  // [v, h], and [positions, h] where they are learned
  Affine norm, head;
};

/// A directory of dense weights, each widened to fp64 when asked for.
class StandardWeights {
 public:
  /// Errors: those of io::SafetensorsDirectory.
  StandardWeights(const std::filesystem::path& directory, const model::Config& config);

  FormulaEnds ends() const;
  FormulaLayer layer(int64_t number) const;

 private:
  FormulaLayer llama_layer(const std::string& layer) const;
  FormulaLayer phi3_layer(const std::string& layer) const;
  FormulaLayer gpt2_layer(const std::string& layer) const;
  FormulaEnds gpt2_ends() const;

  bool has(const std::string& name) const { return files_.contains(name); }
  at::Tensor tensor(const std::string& name) const;
  at::Tensor tensor_if_there(const std::string& name) const;
  Affine affine(const std::string& module) const;
  Affine conv1d(const std::string& module) const;
  /// "transformer.", which files of the model without its head leave out.
  std::string gpt2_prefix() const;

  io::SafetensorsDirectory files_;
  const model::Config& config_;
};

}  // namespace shardwise::doctor
