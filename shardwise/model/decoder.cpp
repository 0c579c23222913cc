// Runs the layers of a decoder: embedding, blocks, norm and lm_head. Parallelism appears only as the type of
// the residual stream.
#include "shardwise/model/decoder.h"

#include <ATen/ops/full.h>

#include "shardwise/kernels/queued_copy.h"
#include "shardwise/nn/split_batch.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::model {

using nn::BlockLayers;

namespace {

/// Checks that every rank runs the same tokens with the same random key.
void verify_inputs(const at::Tensor& ids, const nn::Step& step) {
  if (step.verify == parallel::Verify::off) return;
  parallel::verify_equal(ids, "the token ids", step);
  const auto key = static_cast<int64_t>(step.key.value);
  parallel::verify_equal(at::full({1}, key, at::kLong), "the random key", step);
}

/// The number of a block's part: the first part is before the blocks.
int64_t part_of(const BlockLayers& block) {
  return block.layer + 1;
}

/// Reports that a part computes next.
void report_begin(const nn::Step& step, int64_t part) {
  if (step.part_begins) (*step.part_begins)(part);
}

/// Makes backward report that the gradients of part `part`, whose input is `x`, are complete. Autograd
/// computes the gradient of `x` last of all in the part, because the nodes that it runs were recorded last.
template <nn::ResidualStream Stream>
void report_when_done(const nn::DeferredReduction<Stream>& x, const nn::Step& step, int64_t part) {
  if (!step.part_gradients_done || !x.value || !x.value->local().requires_grad()) return;
  x.value->local().register_hook(
      [done = step.part_gradients_done, part](const at::Tensor&) { (*done)(part); });
}

}  // namespace

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::embedded(const at::Tensor& ids, const nn::Step& step) const {
  const auto& w = weights_;
  nn::check_step(step, ids.size(-1));
  if (step.split_batch)
    nn::check_split_batch(step, ids.size(-1),
                          /*is_sequence_parallel=*/!std::is_same_v<Stream, nn::Invariant>);
  verify_inputs(ids, step);
  report_begin(step, /*part=*/0);
  auto embedded = w.embedding_.template to<Stream>(ids, step);
  if (w.positions_) embedded = (*w.positions_)(embedded, step);
  embedded = nn::dropout(embedded, step, {/*layer=*/-1, nn::DropoutSite::Site::embedding});
  return nn::observed(&observer_, {nn::Stage::Kind::embedding}, std::move(embedded));
}

template <nn::ResidualStream Stream>
nn::DeferredReduction<Stream> Decoder<Stream>::run_blocks(nn::Placed<Stream> stream, size_t chunk,
                                                          const nn::Step& step) const {
  const std::span<const BlockLayers> blocks = weights_.blocks(chunk);
  if constexpr (std::is_same_v<Stream, nn::Invariant>) {
    if (step.split_batch && at::GradMode::is_enabled()) {
      nn::SplitBatch halves(std::move(stream), step);
      for (const BlockLayers& block : blocks) halves.apply(block);
      return std::move(halves).concatenated();
    }
  }
  nn::DeferredReduction<Stream> x(std::move(stream));
  for (const BlockLayers& block : blocks) {
    report_when_done(x, step, part_of(block));
    report_begin(step, part_of(block));
    x = nn::run_block(block, std::move(x), step, &observer_);
  }
  report_when_done(x, step, weights_.stage()[chunk].end + 1);
  return x;
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::through_blocks(nn::Placed<Stream> x, size_t chunk,
                                                   const nn::Step& step) const {
  return run_blocks(std::move(x), chunk, step).reduced(step);
}

/// Returns the residual stream after the last block, before the final norm.
template <nn::ResidualStream Stream>
nn::DeferredReduction<Stream> Decoder<Stream>::hidden(const at::Tensor& ids, const nn::Step& step) const {
  return run_blocks(embedded(ids, step), /*chunk=*/0, step);
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::normed(nn::DeferredReduction<Stream> x, const nn::Step& step) const {
  report_begin(step, /*part=*/weights_.config().num_hidden_layers + 1);
  return nn::observed(&observer_, {nn::Stage::Kind::norm}, weights_.norm_(x, step));
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::head_of(const nn::Placed<Stream>& normed,
                                                               const nn::Step& step) const {
  return nn::observed(&observer_, {nn::Stage::Kind::logits}, weights_.head_(normed, step));
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits(const at::Tensor& ids,
                                                              const nn::Step& step) const {
  return head_of(normed(hidden(ids, step), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits_of(nn::Placed<Stream> x,
                                                                 const nn::Step& step) const {
  return head_of(normed(nn::DeferredReduction<Stream>(std::move(x)), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::head_of_rows(
    nn::DeferredReduction<Stream> x, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  const auto& w = weights_;
  const auto chosen = [&](const nn::Placed<Stream>& all) {
    return nn::Placed<Stream>(all.local().index_select(0, kernels::queued_copy(rows, all.local().device())));
  };
  // Selects rows before the norm if there are fewer; otherwise the norm performs the last reduction.
  const bool takes_all = rows.size(0) >= x.value->local().size(0);
  return w.head_(takes_all ? chosen(w.norm_(x, step)) : w.norm_(chosen(x.reduced(step)), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::next_logits(
    const at::Tensor& ids, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  return head_of_rows(hidden(ids, step), rows, step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::next_logits_of(
    nn::Placed<Stream> x, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  return head_of_rows(nn::DeferredReduction<Stream>(std::move(x)), rows, step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss(const at::Tensor& ids, const at::Tensor& labels,
                                                const nn::LossOptions& options, const nn::Step& step) const {
  return nn::linear_cross_entropy(normed(hidden(ids, step), step), weights_.head_, labels, options, step,
                                  &observer_);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss_of(nn::Placed<Stream> x, const at::Tensor& labels,
                                                   const nn::LossOptions& options,
                                                   const nn::Step& step) const {
  return nn::linear_cross_entropy(normed(nn::DeferredReduction<Stream>(std::move(x)), step), weights_.head_,
                                  labels, options, step, &observer_);
}

template class Decoder<nn::Invariant>;
template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model
