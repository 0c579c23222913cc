// Guards that count what goes on while they live. For group*.cpp only.
#pragma once
#include <c10/core/GradMode.h>

#include <chrono>
#include <memory>

#include "shardwise/comm/counters.h"
#include "shardwise/comm/symmetric_heap.h"

namespace shardwise::comm {

/// Counts the time in which it lives, and how much of it was spent waiting.
class Timed {
 public:
  Timed(Counters& counters, const SymmetricHeap* shared)
      : counters_(counters), shared_(shared), waited_before_(waited()), start_(Clock::now()) {}
  ~Timed() {
    counters_.busy_ns += std::chrono::nanoseconds(Clock::now() - start_).count();
    counters_.waiting_ns += waited() - waited_before_;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t waited() const { return shared_ ? shared_->waited_ns() : 0; }

  Counters& counters_;
  const SymmetricHeap* shared_;
  int64_t waited_before_;
  Clock::time_point start_;
};

/// Counts one call and its time, and keeps autograd out of it.
class Counted {
 public:
  Counted(Counters& counters, const SymmetricHeap* shared, Op op, int64_t bytes)
      : counters_(counters), shared_(shared), op_(op), copied_before_(copied()), timed_(counters, shared) {
    counters_[op].calls += 1;
    counters_[op].bytes += bytes;
  }
  ~Counted() { counters_[op_].copied_bytes += copied() - copied_before_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int64_t copied() const { return shared_ ? shared_->copied_bytes() : 0; }

  Counters& counters_;
  const SymmetricHeap* shared_;
  Op op_;
  int64_t copied_before_;
  Timed timed_;
  c10::NoGradGuard no_grad_;
};

/// Counts the time in which a reader waits for its peers.
class CountedPeerShards final : public PeerShards {
 public:
  CountedPeerShards(std::shared_ptr<PeerShards> exposed, std::shared_ptr<Counters> counters,
                    std::shared_ptr<SymmetricHeap> shared)
      : exposed_(std::move(exposed)), counters_(std::move(counters)), shared_(std::move(shared)) {}
  at::Tensor read(int rank) override {
    const Timed timed(*counters_, shared_.get());
    return exposed_->read(rank);
  }

 private:
  std::shared_ptr<PeerShards> exposed_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<SymmetricHeap> shared_;
};

}  // namespace shardwise::comm
