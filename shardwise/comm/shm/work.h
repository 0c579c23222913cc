// The c10d handle of a receive.
#pragma once
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Nothing happens behind the caller's back: the receive makes progress in `wait`, in `isCompleted`, and when
/// other messages are waited for. Dropped before it is done, it leaves its message to another receive and its
/// tensor as it is. Used by the thread of the collectives; only dropped by any.
class ReceiveWork final : public c10d::Work {
 public:
  ReceiveWork(int rank, c10d::OpType op, std::shared_ptr<Transport> transport,
              std::shared_ptr<Receive> receive)
      : c10d::Work(rank, op), transport_(std::move(transport)), receive_(std::move(receive)) {}
  /// Never waits; true also after a failure, or the group's timeout since the first call.
  bool isCompleted() override;
  bool isSuccess() const override { return receive_->done(); }
  /// Errors: base::CommError after `timeout`, the group's when it is none, or when it cannot succeed.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override { return receive_->sender; }
  std::vector<at::Tensor> result() override { return {receive_->target}; }
  /// Of a receive that is over. Errors: c10::ValueError before.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Receive> receive_;
  std::optional<std::chrono::steady_clock::time_point> polled_since_;
};

}  // namespace shardwise::comm::shm
