// The c10d::Work of an operation that has completed, or failed, when the call returns.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>

namespace shardwise::comm {

/// A completed Work that holds the results or the error.
class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType op, std::vector<at::Tensor> results)
      : c10d::Work(rank, op), results_(std::move(results)) {}
  /// Constructs a failed Work: `wait` throws `error`, the future holds it, the results are empty.
  DoneWork(int rank, c10d::OpType op, std::exception_ptr error) : c10d::Work(rank, op) {
    exception_ = std::move(error);
  }

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return exception_ == nullptr; }
  bool wait(std::chrono::milliseconds) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results_; }
  /// Returns a completed future with the list of results or the error.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Returns a completed future with a value of c10d's WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  std::vector<at::Tensor> results_;
};

}  // namespace shardwise::comm
