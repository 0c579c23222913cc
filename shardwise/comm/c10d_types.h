// The types of c10d that our side needs: its Work for completed calls, receives and coalesced calls, and its
// ReduceOp.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "shardwise/comm/reduction.h"
#include "shardwise/comm/work.h"

namespace shardwise::comm {

/// Converts a c10d reduction. Errors: c10::ValueError naming `backend` and `call` for PREMUL_SUM and UNUSED.
Reduce from_c10d(const c10d::ReduceOp& op, const std::string& backend, const char* call);
c10d::ReduceOp to_c10d(Reduce reduce);
/// Returns a name like "allreduce", which lives as long as the program.
const char* call_name(c10d::OpType op);

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

/// The Work of a receive into `x`.
class ReceiveWork final : public c10d::Work {
 public:
  ReceiveWork(int rank, c10d::OpType op, at::Tensor x, std::unique_ptr<PendingReceive> receive)
      : c10d::Work(rank, op), x_(std::move(x)), receive_(std::move(receive)) {}
  /// Never waits. True also after a failure, or when the group's timeout has passed since the first call.
  /// Errors: c10::ValueError if the call is refused (while another thread's call of the group is in flight,
  /// or in a fork); the receive goes on.
  bool isCompleted() override;
  bool isSuccess() const override { return !exception_ && receive_->sender() >= 0; }
  /// Waits until the message has been received. Errors: base::CommError after `timeout` (the group's timeout
  /// if it is kNoTimeout), or if the receive cannot succeed; those of writing to the tensor. A later call
  /// throws them again. c10::ValueError as in isCompleted.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override { return receive_->sender(); }
  std::vector<at::Tensor> result() override { return {x_}; }
  /// Returns a completed future. Errors: c10::ValueError if the receive is not completed.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  at::Tensor x_;
  std::unique_ptr<PendingReceive> receive_;
};

/// The Work of the calls between startCoalescing and endCoalescing. Completes when all of `works` have; its
/// error is the first one of theirs.
class CoalescedWork final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  /// Errors: those of ReceiveWork::isCompleted.
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
