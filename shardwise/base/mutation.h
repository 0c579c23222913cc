// Deliberate faults for the mutation test; in every other build `mutated` is the constant false.
//
// tests/mutation builds the rooms above a second time with SHARDWISE_MUTATIONS and turns one fault on at a
// time: a fault that no check notices means that the checks are too weak.
#pragma once

namespace shardwise::base {

enum class Mutation {
  none,
  drop_f_backward,          // column-parallel input gradient left a Partial
  drop_f_star,              // row-parallel output left a Partial
  double_f_star,            // reduced twice
  bias_before_reduction,    // row bias added on every rank
  permute_gathered_rows,    // sequence shards gathered in the wrong order
  slice_instead_of_reduce,  // g's backward takes its slice of the own term
  forget_norm_sync,         // norm weights' partial gradients not summed under SP
  forget_kv_replicas,       // gradients of KV heads held twice not summed
  count_replicas_twice,     // global norm counts every holder
  reuse_random_key,         // dropout ignores where the shard lies in the whole
  kv_head_modulo,           // KV head chosen by rank modulo, not by its query heads
  local_vocab_max,          // cross-entropy keeps its own shard's maximum
  mean_over_local_tokens,   // loss normalised by the micro-batch, not the step
  rotary_local_position,    // positions counted from the shard
  swap_group,               // a mesh gives the group of another axis
  gather_stale_shard,       // dW reads the own shard in place of a peer's
};

#ifdef SHARDWISE_MUTATIONS
inline Mutation active_mutation = Mutation::none;
inline bool mutated(Mutation mutation) {
  return active_mutation == mutation;
}
#else
constexpr bool mutated(Mutation) {
  return false;
}
#endif

}  // namespace shardwise::base
