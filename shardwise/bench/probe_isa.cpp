#include "shardwise/bench/probe_isa.h"

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/vectors.h"

namespace shardwise::bench::SHARDWISE_ISA {
namespace {

using Vector = kernels::SHARDWISE_ISA::Vector<float>;
constexpr int64_t kLanes = kernels::SHARDWISE_ISA::kVectorLanes<float>;
/// Enough to keep two units with a latency of five cycles busy, and few enough for sixteen registers.
constexpr int kChains = 12;

uint64_t read(const uint64_t* words, int64_t count) {
  // Prefetching helps on small pages: the hardware prefetcher stops at their ends.
  constexpr int64_t kLine = 64 / sizeof(uint64_t);
  const int64_t ahead = base::prefetch_bytes() / int64_t{sizeof(uint64_t)};
  uint64_t sums[kLine] = {};
  for (int64_t i = 0; i + kLine <= count; i += kLine) {
    __builtin_prefetch(words + i + ahead, /*rw=*/0, /*locality=*/2);
    for (int64_t j = 0; j < kLine; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

float multiply_add(int64_t iterations) {
  Vector sums[kChains] = {}, factor, term;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    factor[lane] = 0.5F;
    term[lane] = static_cast<float>(lane);
  }
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (Vector& sum : sums) sum = sum * factor + term;
    asm volatile("" : "+x"(factor));  // keeps the loop from being folded
  }
  float total = 0;
  for (const Vector& sum : sums)
    for (int64_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  return total;
}

}  // namespace

template <class T>
ProbeLoops<T> probe_loops() {
  return {read, multiply_add, int64_t{2} * kChains * kLanes};
}
template ProbeLoops<float> probe_loops<float>();

}  // namespace shardwise::bench::SHARDWISE_ISA
