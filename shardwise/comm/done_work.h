// The c10d handle of what is over when the call returns, well or not.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>

namespace shardwise::comm {

class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType op, std::vector<at::Tensor> results)
      : c10d::Work(rank, op), results_(std::move(results)) {}
  /// What has failed: `wait` throws `error`, the future hands it on, the results are empty.
  DoneWork(int rank, c10d::OpType op, std::exception_ptr error) : c10d::Work(rank, op) {
    exception_ = std::move(error);
  }

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return exception_ == nullptr; }
  bool wait(std::chrono::milliseconds) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results_; }
  /// Completed, holding the list of results or the error.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Completed, holding a number of c10d's WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  std::vector<at::Tensor> results_;
};

}  // namespace shardwise::comm
