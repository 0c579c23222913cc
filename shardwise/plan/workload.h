// The input of a plan: a model, its sharding, and one micro-batch; and the sizes of one rank's shard.
//
// Arithmetic only. Sizes are split as in base/split.h, so shards may be uneven or empty.
#pragma once
#include <cstdint>
#include <optional>

#include "shardwise/base/recompute.h"
#include "shardwise/base/split.h"
#include "shardwise/config/layout.h"
#include "shardwise/plan/frozen_parameters.h"

namespace shardwise::plan {

using base::Recompute;

/// Tensor parallelism alone (the residual stream is replicated), or with sequence parallelism (the residual
/// stream is sharded along the sequence).
enum class Parallelism { tp, tp_sp };

/// What a column-parallel layer saves of its gathered input for the weight gradient under TP+SP. On shared
/// memory backward reads the peers' shards in place; elsewhere the gathered input is saved, or the local
/// shard is saved and all-gathered again.
enum class ColumnInputStorage { shard_in_place, gathered, shard };

/// The model states that data-parallel ranks split (ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054).
enum class ZeroStage { none, optimizer, gradients, weights };

/// Private memory of the process, or the symmetric heap, which peers can read. Allocators count the two
/// separately.
enum class Pool { private_memory, symmetric_heap };

/// The input of a plan: a model, its sharding, and one micro-batch.
struct Workload {
  config::Config config;             // of the model
  int tp = 1;                        // ranks of tensor parallelism
  int dp = 1;                        // replicas, which sum main gradients in their symmetric heap
  ZeroStage zero = ZeroStage::none;  // what replicas split
  int replicas_per_copy = 1;         // neighbors that read one copy of the weights, in the first one's heap
  int64_t cp = 1;                    // ranks of context parallelism, which split the sequence before tp does
  int64_t ep = 1;                    // ranks of expert parallelism, which split the experts of a block
  Parallelism parallelism = Parallelism::tp_sp;  // TP or TP+SP
  int64_t sequence_length = 0;                   // tokens
  int64_t batch_size = 0;                        // sequences of one micro-batch
  int64_t element_bytes = 4;                     // of weights and activations: 8, 4 or 2
  ColumnInputStorage column_input_storage = ColumnInputStorage::shard_in_place;  // under TP+SP
  Recompute recompute = Recompute::none;                                         // what backward recomputes
  bool split_batch = false;          // split-batch schedule (TP only; nn/split_batch.h)
  bool overlaps_collectives = true;  // with products of their layers (docs/adr/0019)
  bool has_label_smoothing = false;  // the loss gathers one more value per token
  bool has_dropout = false;          // of the residual stream; attention dropout needs no memory
  FrozenParameters frozen = {};      // of the config
  /// Bytes per element of the copies of the two 16-bit operands of a weight gradient GEMM: 4 where they are
  /// widened to fp32, 2 where they are packed for a processor with bf16 instructions
  /// (kernels/bf16_product.h), the output's gradient 128 features at a time, 0 where blocks are widened
  /// (kernels/widened_product.h). Models in fp32 and fp64 copy nothing.
  int64_t wgrad_operand_bytes = 4;
  /// The blocks of one pipeline stage; nullopt: all. The first stage has the embeddings too, the last one
  /// final norm and head, and a copy of the embedding if it is the head.
  std::optional<base::Range> stage = {};
  std::vector<base::Range> later_chunks = {};  // further runs of blocks of an interleaved stage
  int pp = 1;                                  // the stages of the pipeline
  int stage_index = 0;                         // which of them has the blocks of `stage`

  /// Returns the positions of a context-parallel rank: two of 2·cp chunks, the first one and the last one,
  /// the second one and the last but one, and so on, so that all ranks have as many visible keys.
  int64_t positions() const { return cp == 1 ? sequence_length : 2 * ((sequence_length - 1) / (2 * cp) + 1); }
  /// Returns the blocks that the ranks hold, of an interleaved stage the first run.
  base::Range blocks() const { return stage.value_or(base::Range{0, config.num_hidden_layers}); }
  /// Returns true if the ranks hold the embeddings.
  bool has_embedding() const { return blocks().begin == 0; }
  /// Returns true if the ranks hold final norm and head.
  bool has_head() const {
    return (later_chunks.empty() ? blocks() : later_chunks.back()).end == config.num_hidden_layers;
  }
  /// Returns the number of the model's parts (parallel/parameter_parts.h).
  int64_t parts() const { return config.num_hidden_layers + 2; }
  /// Returns the workloads of the runs of blocks of an interleaved stage, each alone.
  std::vector<Workload> chunks() const;

  /// Bytes per element of main gradients, optimizer states, and the statistics that norms, attention and loss
  /// save per row.
  int64_t accumulator_bytes() const { return element_bytes < 4 ? 4 : element_bytes; }
  /// The pool of partial sums that the ranks reduce.
  Pool partial_sum_pool() const {
    return tp > 1 && column_input_storage == ColumnInputStorage::shard_in_place ? Pool::symmetric_heap
                                                                                : Pool::private_memory;
  }
  /// The pool of main gradients.
  Pool gradient_pool() const { return pool_between(dp); }
  /// The pool of what `ranks` ranks of an axis read from each other.
  Pool pool_between(int ranks) const {
    return ranks > 1 && column_input_storage == ColumnInputStorage::shard_in_place ? Pool::symmetric_heap
                                                                                   : Pool::private_memory;
  }
  /// The pool of weights.
  Pool weight_pool() const { return zero == ZeroStage::none ? Pool::private_memory : gradient_pool(); }
  /// The pool of column-parallel inputs: peers read those of TP+SP.
  Pool column_input_pool() const {
    return parallelism == Parallelism::tp_sp ? partial_sum_pool() : Pool::private_memory;
  }
  /// The pool of a block's input. Under TP the first block's input is the reduced embedding in the symmetric
  /// heap, unless dropout, learned positions or halves of a batch are copies of it.
  Pool block_input_pool(int64_t layer) const;
  /// Returns the workload of a half of the split batch, computed without the schedule. The first half, 0, is
  /// the larger one. There must be two sequences or more.
  Workload half_batch(int half) const;
  /// Errors: c10::ValueError if a size is not positive, tp exceeds the number of query heads, element_bytes
  /// is not 2, 4 or 8, `zero` splits the weights, weights are shared without it, the stage has
  /// no block or one that the model does not have, or `frozen` is of another model or all that it has; if ep
  /// is not 1 without experts, or above their number; if there are experts, and tp without sequence
  /// parallelism. The config must be valid.
  void validate() const;
  /// Errors: those of validate; c10::ValueError if `rank` is not in [0, tp).
  void validate_rank(int rank) const;

  /// Projections in the MLP's first GEMM: 2 (gate and up) or 1 (up).
  int64_t up_projections() const { return config.is_gated() ? 2 : 1; }

  /// The splits of heads, ffn columns and vocabulary.
  config::Layout layout() const { return config::make_layout(config, tp); }
  /// Returns the gradients that backward computes in the layers of one block.
  RequiredByBlock required_by_block(int64_t layer) const;
  /// Returns the gradients that backward computes in the embedding.
  RequiredGradients required_by_embedding() const;
  /// Returns the gradients that backward computes in final norm and head.
  RequiredByHead required_by_head() const;
  /// Returns the split of a context-parallel rank's positions over the tensor-parallel ranks.
  base::Split sequence() const;
};

/// Errors: c10::ValueError unless `ep` is 1, or at most the experts of a block.
void check_expert_ranks(const config::Config& config, int64_t ep);

/// The sizes of one rank's shard of every dim.
struct RankShard {
  int64_t heads;          // query heads
  int64_t kv_heads;       // KV heads
  int64_t ffn;            // features inside the MLP
  int64_t vocab;          // vocabulary rows
  int64_t rows;           // s·b, every position of the micro-batch; s/cp·b under context parallelism
  int64_t residual_rows;  // of the rank's residual stream: s·b under TP, s_r·b under TP+SP
};
/// Errors: those of Workload::validate_rank.
RankShard rank_shard(const Workload& workload, int rank);

}  // namespace shardwise::plan
