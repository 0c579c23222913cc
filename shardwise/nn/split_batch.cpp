#include "shardwise/nn/split_batch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/cat.h>

#include <utility>

namespace shardwise::nn {
namespace {

constexpr int64_t kBatch = 1;  // of [s, b, h]

base::Range half_of(int64_t batch, int half) {
  return base::Split::even("batch", batch, 2).range(half);
}

Placed<Invariant> sequences_of(const Placed<Invariant>& x, int half) {
  const base::Range range = half_of(x.local().size(kBatch), half);
  return Placed<Invariant>(x.local().narrow(kBatch, range.begin, range.size()).contiguous());
}

Step step_of(Step step, int64_t batch, int half) {
  if (step.valid.empty()) return step;
  const base::Range range = half_of(batch, half);
  step.valid = {step.valid.begin() + range.begin, step.valid.begin() + range.end};
  return step;
}

}  // namespace

std::string broken_split_batch_rule(const Step& step, int64_t b, bool is_sequence_parallel) {
  if (is_sequence_parallel) return "needs TP without sequence parallelism; got TP+SP";
  if (b < 2) return c10::str("needs a batch of 2 sequences or more; got ", b);
  if (step.dropout > 0 || step.attention_dropout > 0)
    return c10::str("needs dropout 0; got ", step.dropout, " and ", step.attention_dropout, " in attention");
  if (step.recompute == base::Recompute::full) return "needs recompute none or selective; got full";
  return "";
}

void check_split_batch(const Step& step, int64_t b, bool is_sequence_parallel) {
  const std::string broken = broken_split_batch_rule(step, b, is_sequence_parallel);
  TORCH_CHECK_VALUE(broken.empty(), "step: the split-batch schedule ", broken, " [SW0446]");
}

const Placed<Invariant>& SplitBatch::Half::wait() {
  if (branch) x = x + std::exchange(branch, std::nullopt)->wait();
  return x;
}

SplitBatch::SplitBatch(Placed<Invariant> x, const Step& step)
    : halves_(split(std::move(x), step)), next_wait_(at::sequence_number::get_and_increment()) {}

std::array<SplitBatch::Half, 2> SplitBatch::split(Placed<Invariant>&& x, const Step& step) {
  const int64_t batch = x.local().size(kBatch);
  check_step(step, batch);
  check_split_batch(step, batch, /*is_sequence_parallel=*/false);
  return {Half{sequences_of(x, 0), step_of(step, batch, 0), {}},
          Half{sequences_of(x, 1), step_of(step, batch, 1), {}}};
}

template <class Norm, class Region>
void SplitBatch::run_branch(const Norm& norm, const Region& region) {
  for (Half& half : halves_) {
    const uint64_t wait_at = std::exchange(next_wait_, at::sequence_number::get_and_increment());
    const Placed<Invariant> normed = norm(half.wait(), half.step);
    const Placed<Replicated> input = parallel::enter_async(normed, half.step, wait_at);
    half.branch.emplace(*region(input, half.step).pending, half.step);
  }
}

void SplitBatch::apply(const BlockLayers& block) {
  run_branch(block.norm1,
             [&](const Placed<Replicated>& x, const Step& step) { return block.attention(x, step); });
  run_branch(block.norm2, [&](const Placed<Replicated>& x, const Step& step) { return block.mlp(x, step); });
}

Placed<Invariant> SplitBatch::concatenated() && {
  const at::Tensor first = halves_[0].wait().local(), second = halves_[1].wait().local();
  return Placed<Invariant>(at::cat({first, second}, kBatch));
}

}  // namespace shardwise::nn
