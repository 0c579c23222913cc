// The logits of a stored model by another implementation: a decoder from its files and the published formulas
// alone, in plain tensor operators. What the layers, their kernels and the loader make of the same files is
// held against it; it shares no arithmetic and no table of names with them, and is as slow as that is.
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
#include "shardwise/model/config.h"

namespace shardwise::doctor {

/// The logits, in fp64, of the checkpoint in `directory`, from its tensors' standard names. `valid`: the
/// positions of each sequence that hold tokens; empty: all. Padding attends to nothing, and has a learned
/// position of its own: 0 before the first token, after the last it counts on.
/// Shapes: ids [s, b] int64 → [s, b, v].
/// Cost: all on this rank; of memory the ends' weights and one layer's in fp64, and every score of a layer.
/// Errors: io::SafetensorsDirectory's; TORCH_INTERNAL_ASSERT for quantized weights, or a family without
/// formulas.
at::Tensor formula_logits(const std::filesystem::path& directory, const model::Config& config,
                          const at::Tensor& ids, const std::vector<base::Range>& valid);

}  // namespace shardwise::doctor
