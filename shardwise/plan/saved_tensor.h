// The tensors that training may save for backward, by name.
#pragma once

namespace shardwise::plan {

/// A tensor of a block's or the head's forward that a backward may read.
enum class SavedTensor {
  norm1_input,         // the block's input
  norm1_rstd,          // the first norm's 1/rms or 1/std per row
  norm1_mean,          // the first norm's mean per row, of a LayerNorm
  qkv_input,           // the first norm's output
  latents,             // of latent attention: what queries, keys and values are projected from
  normalized_latents,  // their norms, of which the rotated part of the keys has none
  q,                   // the queries, before q/k norm if there is one
  k,                   // the keys, before q/k norm if there is one
  v,                   // the values
  attention_output,    // also the output projection's input
  attention_lse,       // log Σ exp of each row of scores
  norm2_input,         // the residual stream after attention
  norm2_rstd,          // the second norm's 1/rms or 1/std per row
  norm2_mean,          // the second norm's mean per row, of a LayerNorm
  mlp_input,           // the second norm's output
  gate_and_up,         // the output of a gated MLP's first GEMM
  up,                  // the output of another MLP's first GEMM
  down_input,          // the activation's output
  router_scores,       // of every expert, in fp32
  expert_input,        // rows sent to this rank's experts
  expert_gate_and_up,  // the output of an expert's first GEMM
  expert_down_input,   // the activation's output
  expert_output,       // rows before they are weighted
  norm_input,          // the residual stream after the last block
  norm_rstd,           // the final norm's 1/rms or 1/std per row
  norm_mean,           // the final norm's mean per row, of a LayerNorm
  head_gradient,       // of the head's input, which the loss computes in the forward
};

/// Returns the name for output: "norm1 input".
const char* text_of(SavedTensor tensor);

}  // namespace shardwise::plan
