// Activation recomputation (checkpointing): which activations backward recomputes instead of loading.
#pragma once

namespace shardwise::base {

/// Which activations a block saves for backward. Gradients are bitwise equal in every mode.
enum class Recompute {
  none,       // saves everything that backward reads
  selective,  // recomputes elementwise results: the MLP's activation
  full,       // saves only the block's input; backward reruns the block's forward first
};

/// Returns the name of `recompute`, as in --recompute.
constexpr const char* name_of(Recompute recompute) {
  return recompute == Recompute::none ? "none" : recompute == Recompute::full ? "full" : "selective";
}

}  // namespace shardwise::base
