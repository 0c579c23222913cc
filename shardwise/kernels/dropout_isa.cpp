#include "shardwise/kernels/dropout_isa.h"

#include "shardwise/kernels/dropout_words.h"
#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

// Multiplies unconditionally, so that the mask compiles to a select and not to a branch.
template <class T>
void apply_words(T* __restrict y, const T* __restrict x, const uint32_t* __restrict words, int64_t count,
                 uint32_t threshold, Accumulator<T> scale) {
  for (int64_t i = 0; i < count; ++i) {
    const Accumulator<T> scaled = widen(x[i]) * scale;
    y[i] = narrow<T>(words[i] >= threshold ? scaled : 0);
  }
}

template <class T>
void apply(T* y, const T* x, int64_t count, uint64_t first, DropoutMask mask, Accumulator<T> scale) {
  alignas(64) uint32_t words[kDrawnGroups * kDropoutGroup];
  for (int64_t i = 0; i < count;) {
    const int64_t skipped = static_cast<int64_t>((first + i) % kDropoutGroup);
    const int64_t needed = skipped + count - i;
    const int64_t groups =
        needed < kDrawnGroups * kDropoutGroup ? (needed + kDropoutGroup - 1) / kDropoutGroup : kDrawnGroups;
    const int64_t size = (groups * kDropoutGroup < needed ? groups * kDropoutGroup : needed) - skipped;
    draw_words(words, mask.key, (first + i) / kDropoutGroup, groups);
    apply_words(y + i, x + i, words + skipped, size, mask.threshold, scale);
    i += size;
  }
}

}  // namespace

template <class T>
DropoutLoops<T> dropout_loops() {
  return {apply<T>};
}
SHARDWISE_INSTANTIATE(DropoutLoops, dropout_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
