// The tensors that training may save for backward, by name.
#pragma once

namespace shardwise::plan {

/// A tensor of a block's or the head's forward that a backward may read. `rstd` and `mean` are a norm's
/// statistics, `lse` is the logarithm of a softmax's denominator.
enum class SavedTensor {
  // of a block
  norm1_input,
  norm1_rstd,
  norm1_mean,
  qkv_input,
  q,  // before q/k norm, if there is one
  k,
  v,
  attention_output,  // also the output projection's input
  attention_lse,
  norm2_input,
  norm2_rstd,
  norm2_mean,
  mlp_input,
  gate_and_up,  // the output of a gated MLP's first GEMM
  up,           // the output of another MLP's first GEMM
  down_input,
  // of final norm, head and loss
  norm_input,
  norm_rstd,
  norm_mean,
  head_input,
  logits,
  labels,
  loss_lse,
};

/// Returns the name for output: "norm1 input".
const char* text_of(SavedTensor tensor);

}  // namespace shardwise::plan
