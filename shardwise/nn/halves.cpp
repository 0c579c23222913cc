#include "shardwise/nn/halves.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/cat.h>

#include <utility>

#include "shardwise/base/mutation.h"

namespace shardwise::nn {
namespace {

constexpr int64_t kBatch = 1;  // of [s, b, h]

base::Range half_of(int64_t batch, int half) {
  return base::Split::even("batch", batch, 2).range(half);
}

Residual<Invariant> rows_of(const Placed<Invariant>& x, int half) {
  const base::Range range = half_of(x.local().size(kBatch), half);
  return Residual<Invariant>(
      Placed<Invariant>(x.local().narrow(kBatch, range.begin, range.size()).contiguous()));
}

Step step_of(Step step, int64_t batch, int half) {
  if (step.valid.empty()) return step;
  const base::Range range = half_of(batch, half);
  step.valid = {step.valid.begin() + range.begin, step.valid.begin() + range.end};
  return step;
}

}  // namespace

Halves::Halves(const Placed<Invariant>& x, const Step& step)
    : halves_(cut(x, step)), next_turn_(at::sequence_number::get_and_increment()) {}

std::array<Halves::Half, 2> Halves::cut(const Placed<Invariant>& x, const Step& step) {
  const int64_t batch = x.local().size(kBatch);
  check_step(step, batch);
  check_halves(step, batch);
  return {Half{rows_of(x, 0), step_of(step, batch, 0)}, Half{rows_of(x, 1), step_of(step, batch, 1)}};
}

void Halves::apply(Layer layer) {
  for (Half& half : halves_) {
    half.step.turn = std::exchange(next_turn_, at::sequence_number::get_and_increment());
    half.x = layer(Residual<Invariant>(std::move(half.x).taken(half.step)), half.step);
  }
}

Placed<Invariant> Halves::joined() && {
  at::Tensor first = std::move(halves_[0].x).taken(halves_[0].step).local();
  at::Tensor second = std::move(halves_[1].x).taken(halves_[1].step).local();
  if (base::mutated(base::Mutation::swap_halves)) std::swap(first, second);
  return Placed<Invariant>(at::cat({first, second}, kBatch));
}

}  // namespace shardwise::nn
