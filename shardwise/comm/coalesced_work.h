// The c10d handle of the calls between startCoalescing and endCoalescing.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shardwise::comm {

/// Over when all of them are; what fails first is its error.
class CoalescedWork final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// `timeout` is that of all together.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  /// The results of all, in the order of the calls.
  std::vector<at::Tensor> result() override;
  /// Errors: c10::ValueError while a receive is not done.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Works works_;
};

}  // namespace shardwise::comm
