// Deliberate faults for mutation testing; in every other build `mutated` is the constant false.
//
// tests/mutation compiles the sources that contain faults a second time, links them before the libraries, and
// runs the ordinary tests with one fault turned on. tests/mutation/faults.md describes each fault and names
// the test that must fail.
#pragma once

namespace shardwise::base {

#define SHARDWISE_FAULTS(FAULT)    \
  FAULT(drop_f_backward)           \
  FAULT(double_f_backward)         \
  FAULT(drop_f_star)               \
  FAULT(double_f_star)             \
  FAULT(average_f_star)            \
  FAULT(f_star_reduces_backward)   \
  FAULT(slice_instead_of_reduce)   \
  FAULT(reduce_instead_of_slice)   \
  FAULT(reduce_in_place)           \
  FAULT(drop_reduced_copy)         \
  FAULT(permute_gathered_rows)     \
  FAULT(slice_of_next_rank)        \
  FAULT(gather_stale_shard)        \
  FAULT(bias_before_reduction)     \
  FAULT(forget_norm_sync)          \
  FAULT(forget_own_heads_sync)     \
  FAULT(forget_kv_replicas)        \
  FAULT(sum_invariant_gradients)   \
  FAULT(average_gradients)         \
  FAULT(sync_in_two)               \
  FAULT(keep_main_grad)            \
  FAULT(round_main_grad)           \
  FAULT(count_replicas_twice)      \
  FAULT(count_whole_everywhere)    \
  FAULT(local_norm)                \
  FAULT(sum_for_largest)           \
  FAULT(norm_before_sync)          \
  FAULT(clip_cut_only)             \
  FAULT(norm_without_peers_cuts)   \
  FAULT(kv_head_modulo)            \
  FAULT(kv_gradient_of_one_head)   \
  FAULT(window_one_wider)          \
  FAULT(attend_to_padding)         \
  FAULT(drop_fused_bias_gradient)  \
  FAULT(rotary_local_position)     \
  FAULT(positions_from_zero)       \
  FAULT(embedding_off_by_one)      \
  FAULT(label_off_by_one)          \
  FAULT(local_vocab_max)           \
  FAULT(local_loss_sums)           \
  FAULT(double_loss_sums)          \
  FAULT(smooth_over_own_classes)   \
  FAULT(z_loss_without_gradient)   \
  FAULT(count_ignored_labels)      \
  FAULT(train_ignored_labels)      \
  FAULT(mean_over_local_tokens)    \
  FAULT(freeze_tied_head)          \
  FAULT(reuse_random_key)          \
  FAULT(mask_of_every_layer)       \
  FAULT(mask_of_every_site)        \
  FAULT(mask_of_every_step)        \
  FAULT(mask_of_every_micro_batch) \
  FAULT(mask_by_rank)              \
  FAULT(mask_of_local_heads)       \
  FAULT(redraw_mask)               \
  FAULT(init_shards_alike)         \
  FAULT(decay_norms)               \
  FAULT(keep_rounded_weights)      \
  FAULT(adam_step_off_by_one)      \
  FAULT(schedule_off_by_one)       \
  FAULT(labels_unshifted)          \
  FAULT(rank_reads_own_windows)    \
  FAULT(repeat_windows)            \
  FAULT(save_slices_swapped)       \
  FAULT(load_first_slice)          \
  FAULT(forget_moments)            \
  FAULT(resume_off_by_one)         \
  FAULT(swap_gate_up)              \
  FAULT(swap_k_v)                  \
  FAULT(wrong_layer)               \
  FAULT(first_group_whole)         \
  FAULT(scale_by_shard)            \
  FAULT(awq_outputs_in_order)      \
  FAULT(zeros_as_stored)           \
  FAULT(ignore_listed_groups)      \
  FAULT(swap_group)                \
  FAULT(reuse_at_once)             \
  FAULT(round_every_term)          \
  FAULT(own_term_first)            \
  FAULT(gather_kept_again)         \
  FAULT(count_pieces_alike)        \
  FAULT(take_own_index)            \
  FAULT(kept_in_reverse)           \
  FAULT(name_receiver_as_sender)   \
  FAULT(free_untaken_message)      \
  FAULT(await_no_arrivals)         \
  FAULT(compare_bytes_unsigned)    \
  FAULT(sum_for_average)           \
  FAULT(coalesce_first_only)       \
  FAULT(drop_async_all_reduce)     \
  FAULT(swap_halves)               \
  FAULT(drop_received_copy)

enum class Mutation {
#define SHARDWISE_ENUMERATOR(name) name,
  SHARDWISE_FAULTS(SHARDWISE_ENUMERATOR)
#undef SHARDWISE_ENUMERATOR
};

#ifdef SHARDWISE_MUTATIONS
bool mutated(Mutation mutation);  // true if $SHARDWISE_MUTATION names `mutation`
#else
constexpr bool mutated(Mutation) {
  return false;
}
#endif

}  // namespace shardwise::base
