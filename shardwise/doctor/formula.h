// A second implementation of the logits of a stored model: a decoder written from the published formulas with
// ATen operators. It checks the layers, their kernels and the loader. It shares no arithmetic and no table of
// names with them, and it is slow.
//
// Sources: Touvron et al. 2023 (Llama), Zhang & Sennrich 2019 (RMSNorm), Su et al. 2021 (rotary positions),
// Ainslie et al. 2023 (grouped queries), Jiang et al. 2023 (sliding window), Shazeer 2020 (SwiGLU), Radford
// et al. 2018, 2019 (GPT), Ba et al. 2016 (LayerNorm), Hendrycks & Gimpel 2016 (GELU); transformers,
// modeling_<family>.py and modeling_rope_utils.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/config/config.h"

namespace shardwise::doctor {

/// Returns the logits, in fp64, of the checkpoint in `directory`, whose tensors have their standard names.
/// `valid`: the range of each sequence that has tokens; empty: all. Padding attends to nothing; its learned
/// position is 0 before the first token and continues to count after the last. If the config quantizes on
/// load, weights have the values of quantization_formula.h, embedding and head in int8 with a scale per row.
/// Shapes: ids [s, b] int64 → [s, b, v].
/// Cost: no communication. Memory: weights of embedding, final norm, head and one layer in fp64, and all
/// attention scores of a layer.
/// Errors: those of io::SafetensorsDirectory; TORCH_INTERNAL_ASSERT for files of quantized weights or an
/// unsupported family.
at::Tensor formula_logits(const std::filesystem::path& directory, const config::Config& config,
                          const at::Tensor& ids, const std::vector<base::Range>& valid);

}  // namespace shardwise::doctor
