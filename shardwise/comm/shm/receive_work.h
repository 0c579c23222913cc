// The c10d handle of a receive.
#pragma once
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// A posted receive without a background thread: it makes progress in `wait`, in `isCompleted`, and while
/// this rank waits for other messages. If it is dropped before it is done, its tensor is unchanged and its
/// message goes to another receive. Used by the thread of the collectives; may be dropped on any thread.
class ReceiveWork final : public c10d::Work {
 public:
  ReceiveWork(int rank, c10d::OpType op, std::shared_ptr<Transport> transport,
              std::shared_ptr<Receive> receive)
      : c10d::Work(rank, op), transport_(std::move(transport)), receive_(std::move(receive)) {}
  /// Never waits. True also after a failure, or when the group's timeout has passed since the first call.
  bool isCompleted() override;
  bool isSuccess() const override { return receive_->done(); }
  /// Waits until the receive is done. Errors: base::CommError after `timeout` (the group's timeout if it is
  /// kNoTimeout), or if the receive cannot succeed.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override { return receive_->sender; }
  std::vector<at::Tensor> result() override { return {receive_->target}; }
  /// Returns a completed future. Errors: c10::ValueError if the receive is not completed.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Receive> receive_;
  std::optional<std::chrono::steady_clock::time_point> polled_since_;
};

}  // namespace shardwise::comm::shm
