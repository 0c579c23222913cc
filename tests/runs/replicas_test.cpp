// Replicated tensors (norm weights, row biases, shared KV heads) stay bit-equal on all ranks in every step:
// weights and synchronized gradients, with dropout, clipping and AdamW.
#include <cmath>

#include "shardwise/train/trainer.h"
#include "tests/support/cases.h"
#include "tests/support/extent.h"
#include "tests/train/runs.h"

namespace shardwise::testing::replicas_test {
namespace {

// The number of rows with replicas on other ranks than their owner, and of tensors that differ from the
// owner's.
struct Replicas {
  int64_t rows = 0, differing = 0;
};

int64_t length(const std::vector<base::ShardRule::Piece>& pieces) {
  int64_t length = 0;
  for (const auto& piece : pieces) length += piece.size;
  return length;
}

// Compares the replicas (collective). Each rank compares a part of the tensors.
Replicas compared(const model::DecoderWeights& weights, Board& board) {
  Replicas replicas;
  const int ranks = weights.group().size();
  board.publish(weights);
  int next = 0;
  for_each_stored(weights, [&](size_t parameter, const model::StoredTensor& stored) {
    if (next++ % ranks != weights.group().rank()) return;
    for (const Board::What what : {Board::What::value, Board::What::gradient}) {
      const at::Tensor full = board.full(parameter, stored, what);
      replicas.differing += board.differing(full, parameter, stored, what);
    }
    for (int rank = 0; rank < ranks; ++rank)
      replicas.rows += length(stored.held(rank)) - length(stored.owned(rank));
  });
  board.retract(weights.group());
  return replicas;
}

// 6 query heads and 3 KV heads on 2 to 4 ranks, and row biases.
train::TrainOptions options_of(const Scratch& scratch, const char* dtype, int64_t tp,
                               bool sequence_parallel) {
  train::TrainOptions options = small_options(scratch);
  config::Config config = small_byte_config();
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  options.model_config = scratch.put("config.json", config::to_json(config));
  options.steps = is_full() ? 1000 : 10;
  options.dtype = dtype;
  options.dropout = 0.1;
  options.clip_grad = 0.5;
  options.tp = tp;
  options.sequence_parallel = sequence_parallel;
  return options;
}

void check(const train::TrainOptions& options) {
  const train::Job job(options);
  Board board(static_cast<int>(options.tp));
  on_ranks(static_cast<int>(options.tp), [&](const comm::Group& group) {
    train::Trainer trainer(job, train::one_replica(group));
    int64_t rows = 0;
    while (trainer.steps_done() < options.steps) {
      const train::StepRecord record = trainer.step();
      ASSERT_TRUE(std::isfinite(record.loss)) << "step " << record.step;
      const Replicas replicas = compared(trainer.weights(), board);
      ASSERT_EQ(replicas.differing, 0) << "step " << record.step << " on rank " << group.rank();
      rows += replicas.rows;
    }
    EXPECT_GT(rows, 0) << "no rows are replicated";
  });
}

TEST(Replicas, StayBitEqual) {
  int runs = 0;
  int64_t steps = 0;
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const int64_t tp : {2, 3, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        const Scratch scratch;
        SCOPED_TRACE(std::string(dtype) + " on " + std::to_string(tp));
        const train::TrainOptions options = options_of(scratch, dtype, tp, sequence_parallel);
        check(options);
        ++runs, steps = options.steps;
      }
    }
  }
  std::printf("covered: %d runs of %ld steps, replicas compared after each\n", runs,
              static_cast<long>(steps));
}

}  // namespace
}  // namespace shardwise::testing::replicas_test
