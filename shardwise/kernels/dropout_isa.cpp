#include "shardwise/kernels/dropout_isa.h"

#include "shardwise/kernels/loops.h"
#include "shardwise/kernels/philox_lanes.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kGroups = 8;  // drawn at a time: their words stay in the first-level cache

// The words of `groups` groups in the elements' order.
void draw(uint32_t* words, uint64_t key, uint64_t first_group, int64_t groups) {
  constexpr uint64_t kLower = 0xffffffff;
  constexpr int64_t kBlocks = kDropoutGroup / 4;
  for (int64_t block = 0; block < groups * kBlocks; block += kPhiloxLanes) {
    const PhiloxBlocks blocks = philox_blocks(first_group * kBlocks + block, key);
    uint32_t* to = words + block / kBlocks * kDropoutGroup + block % kBlocks * 2;
    const PhiloxWords first = (blocks.word[0] & kLower) | (blocks.word[1] << 32);
    const PhiloxWords second = (blocks.word[2] & kLower) | (blocks.word[3] << 32);
    __builtin_memcpy(to, &first, sizeof first);
    __builtin_memcpy(to + kDropoutGroup / 2, &second, sizeof second);
  }
}

// The product is taken either way, so that the mask is a select and not a branch.
template <class T>
Accumulator<T> kept(const T* x, uint32_t word, uint32_t threshold, Accumulator<T> scale) {
  const Accumulator<T> scaled = widen(*x) * scale;
  return word >= threshold ? scaled : 0;
}

template <class T>
void apply_words(T* __restrict y, const T* __restrict x, const uint32_t* __restrict words, int64_t count,
                 uint32_t threshold, Accumulator<T> scale) {
  for (int64_t i = 0; i < count; ++i) y[i] = narrow<T>(kept(x + i, words[i], threshold, scale));
}

template <class T>
void add_words(T* __restrict y, const T* __restrict residual, const T* __restrict x,
               const uint32_t* __restrict words, int64_t count, uint32_t threshold, Accumulator<T> scale) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = narrow<T>(widen(residual[i]) + kept(x + i, words[i], threshold, scale));
  }
}

template <class T>
void apply(T* y, const T* residual, const T* x, int64_t count, uint64_t first, DropoutMask mask,
           Accumulator<T> scale) {
  alignas(64) uint32_t words[kGroups * kDropoutGroup];
  for (int64_t i = 0; i < count;) {
    const int64_t skipped = static_cast<int64_t>((first + i) % kDropoutGroup);
    const int64_t wanted = skipped + count - i;
    const int64_t groups =
        wanted < kGroups * kDropoutGroup ? (wanted + kDropoutGroup - 1) / kDropoutGroup : kGroups;
    const int64_t size = (groups * kDropoutGroup < wanted ? groups * kDropoutGroup : wanted) - skipped;
    draw(words, mask.key, (first + i) / kDropoutGroup, groups);
    if (residual) {
      add_words(y + i, residual + i, x + i, words + skipped, size, mask.threshold, scale);
    } else {
      apply_words(y + i, x + i, words + skipped, size, mask.threshold, scale);
    }
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
