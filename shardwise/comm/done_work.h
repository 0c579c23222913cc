// The c10d handle of what is done when the call returns.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shardwise::comm {

class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType op, std::vector<at::Tensor> results)
      : c10d::Work(rank, op), results_(std::move(results)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }
  /// Completed, holding the list of results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<at::Tensor> results_;
};

}  // namespace shardwise::comm
