// What a plan is asked about: a model, how it is split, and one micro-batch; and what one rank holds of it.
//
// Arithmetic only. The splits are those of base/split.h, so uneven and empty shares come out as they are
// dealt.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "shardwise/base/recompute.h"
#include "shardwise/base/split.h"
#include "shardwise/model/config.h"

namespace shardwise::plan {

using base::Recompute;

/// The residual stream: whole on every rank (TP), or cut along the sequence (TP+SP).
enum class Stream { tp, tp_sp };

/// What becomes of a column-parallel product's gathered input under TP+SP until its weight gradient needs it.
/// On shared memory there is none, peers' shards are read where they lie; elsewhere it is kept, or gathered
/// again.
enum class SaveForBackward { shard_in_place, gathered, shard };

/// Memory of the rank's own, or memory that its peers can read: those who measure count them apart.
enum class Pool { own, shared };

struct Workload {
  model::Config config;
  int tp = 1;
  Stream stream = Stream::tp_sp;
  int64_t sequence_length = 0;
  int64_t batch_size = 0;     // sequences of one micro-batch
  int64_t element_bytes = 4;  // of weights and activations: 8, 4 or 2
  SaveForBackward save_for_backward = SaveForBackward::shard_in_place;
  Recompute recompute = Recompute::none;
  bool split_batch = false;     // under TP the blocks take the batch so; memory is not planned for it
  bool smooths_labels = false;  // one more number per token in the loss
  bool has_dropout = false;     // on the stream; attention's needs nothing
  bool is_padded = false;       // the loss then keeps labels of its own, without the padding's
  /// Parameters that are not trained, by our names (model/config_tensors.h).
  std::set<std::string> frozen = {};
  /// Per element of the two 16-bit factors of a weight gradient while they are multiplied: 4 widened to fp32,
  /// 2 packed for a processor that multiplies bf16 (kernels/bf16_product.h). Wider models copy nothing.
  int64_t factor_bytes = 4;

  /// Of main gradients, optimizer states, and what norms, attention and loss save per row.
  int64_t accumulator_bytes() const { return element_bytes < 4 ? 4 : element_bytes; }
  /// Where terms of sums over the ranks are made.
  Pool term_pool() const {
    return tp > 1 && save_for_backward == SaveForBackward::shard_in_place ? Pool::shared : Pool::own;
  }
  /// Where column-parallel inputs lie: peers read those of TP+SP.
  Pool column_input_pool() const { return stream == Stream::tp_sp ? term_pool() : Pool::own; }
  /// Where a block's input lies: the first one's, under TP, where the embedding's sum was made, unless
  /// dropout or learned positions make it anew.
  Pool block_input_pool(int64_t layer) const;
  /// Errors: c10::ValueError when a size is not positive, tp is above the query heads, element_bytes is none
  /// of the three, or `frozen` names what the model does not have or leaves nothing to train. The config is
  /// taken as valid.
  void validate() const;

  /// Columns of the MLP's first product for each of its second's: gate and up, or up alone.
  int64_t mlp_inputs() const { return config.is_gated() ? 2 : 1; }

  base::Split heads() const;
  base::Split kv_heads() const;
  base::Split ffn() const;
  base::Split vocab() const;
  base::Split sequence() const;
};

/// One rank's part of every dim.
struct Share {
  int64_t heads, kv_heads, ffn, vocab;
  int64_t rows;  // s·b, every position of the micro-batch
  int64_t
      stream_rows;  // those that the rank's residual stream holds: s·b under TP, its own s_r·b under TP+SP
};
/// Errors: those of Workload::validate; c10::ValueError for a rank outside [0, tp).
Share share_of(const Workload& workload, int rank);

}  // namespace shardwise::plan
