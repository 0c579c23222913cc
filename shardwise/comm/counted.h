// Scope guards that count calls, bytes and time. For group*.cpp only.
#pragma once
#include <c10/core/GradMode.h>

#include <chrono>
#include <memory>

#include "shardwise/comm/counters.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm {

/// Counts the time of its scope, and the part of it that the rank waited for peers.
class Timed {
 public:
  Timed(Counters& counters, const SymmetricHeap* heap)
      : counters_(counters), heap_(heap), waited_before_(waited()), start_(Clock::now()) {}
  ~Timed() {
    counters_.busy_ns += std::chrono::nanoseconds(Clock::now() - start_).count();
    counters_.waiting_ns += waited() - waited_before_;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t waited() const { return heap_ ? heap_->waited_ns() : 0; }

  Counters& counters_;
  const SymmetricHeap* heap_;
  int64_t waited_before_;
  Clock::time_point start_;
};

/// Counts one call, its bytes and its time, and disables autograd in its scope.
class Counted {
 public:
  Counted(Counters& counters, const SymmetricHeap* heap, Op op, int64_t bytes)
      : counters_(counters), heap_(heap), op_(op), copied_before_(copied()), timed_(counters, heap) {
    counters_[op].calls += 1;
    counters_[op].bytes += bytes;
  }
  ~Counted() { counters_[op_].copied_bytes += copied() - copied_before_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int64_t copied() const { return heap_ ? heap_->copied_bytes() : 0; }

  Counters& counters_;
  const SymmetricHeap* heap_;
  Op op_;
  int64_t copied_before_;
  Timed timed_;
  c10::NoGradGuard no_grad_;
};

/// PeerShards that count the time of `get`, which waits for peers.
class CountedPeerShards final : public PeerShards {
 public:
  CountedPeerShards(std::shared_ptr<PeerShards> shards, std::shared_ptr<Counters> counters,
                    std::shared_ptr<SymmetricHeap> heap)
      : shards_(std::move(shards)), counters_(std::move(counters)), heap_(std::move(heap)) {}
  at::Tensor get(int rank) override {
    const Timed timed(*counters_, heap_.get());
    return shards_->get(rank);
  }

 private:
  std::shared_ptr<PeerShards> shards_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<SymmetricHeap> heap_;
};

}  // namespace shardwise::comm
