// The c10d::Work of the calls between startCoalescing and endCoalescing.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shardwise::comm {

/// A Work that completes when all of `works` have; its error is the first one of theirs.
class CoalescedWork final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Waits for all works; `timeout` limits the total.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  /// Returns the results of all works, in the order of the calls.
  std::vector<at::Tensor> result() override;
  /// Returns a completed future. Errors: c10::ValueError if a receive has not completed.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Works works_;
};

}  // namespace shardwise::comm
