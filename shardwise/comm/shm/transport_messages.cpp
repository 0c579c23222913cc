// The transport's messages: send, receive with its c10d handle, and the barrier that names missing ranks.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_types.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

constexpr int64_t kBarrierTag = int64_t{1} << 32;  // c10d's tags have 32 bits
constexpr std::chrono::milliseconds kSlack{1000};

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

bool ReceiveWork::isCompleted() {
  if (exception_) return true;
  if (!polled_since_) polled_since_ = std::chrono::steady_clock::now();
  try {
    return transport_->inbox().poll(*receive_, *polled_since_);
  } catch (const c10::Error&) {
    exception_ = std::current_exception();
    return true;
  }
}

bool ReceiveWork::wait(std::chrono::milliseconds timeout) {
  if (exception_) std::rethrow_exception(exception_);
  try {
    transport_->inbox().wait(*receive_, timeout == kNoTimeout ? transport_->channel().timeout() : timeout);
  } catch (const base::CommError&) {
    exception_ = std::current_exception();
    throw;
  }
  return true;
}

// A future could not complete later: only the threads that wait for messages receive them.
c10::intrusive_ptr<c10::ivalue::Future> ReceiveWork::getFuture() {
  TORCH_CHECK_VALUE(isCompleted(), "recv: getFuture needs a completed receive; call wait() first [SW0301]");
  if (exception_) return DoneWork(rank_, opType_, exception_).getFuture();
  return DoneWork(rank_, opType_, result()).getFuture();
}

}  // namespace

CollectiveBackend::WorkPtr Transport::send(const at::Tensor& x, int to, int tag) {
  outbox_.send(x, to, tag);
  return c10::make_intrusive<DoneWork>(rank(), c10d::OpType::SEND, Tensors{x});
}

CollectiveBackend::WorkPtr Transport::receive(const at::Tensor& x, int from, int tag) {
  const auto op = from == kAnySource ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  return c10::make_intrusive<ReceiveWork>(rank(), op, shared_from_this(), inbox_.post(x, from, tag));
}

// Every rank sends rank 0 an empty message, and rank 0 replies when it has received all of them, or names the
// missing ranks. The other ranks wait longer than rank 0, so that rank 0 reports the missing ranks.
void Transport::monitored_barrier(std::chrono::milliseconds limit, bool name_all) {
  const at::Tensor empty_message = at::empty({0});
  if (rank() == 0) {
    wait_for_barrier_messages(limit, name_all);
    for (int peer = 1; peer < size(); ++peer) outbox_.send(empty_message, peer, kBarrierTag);
  } else {
    outbox_.send(empty_message, /*to=*/0, kBarrierTag);
    inbox_.wait(*inbox_.post(empty_message, /*source=*/0, kBarrierTag), limit + channel_.timeout() + kSlack);
  }
}

void Transport::wait_for_barrier_messages(std::chrono::milliseconds limit, bool name_all) {
  std::vector<std::shared_ptr<Receive>> arrivals;
  for (int peer = 1; peer < size(); ++peer)
    arrivals.push_back(inbox_.post(at::empty({0}), peer, kBarrierTag));
  const auto has_arrived = [&](const auto& arrival) {
    return arrival->done() || inbox_.try_complete(*arrival);
  };
  const WaitContext context{"monitored_barrier", channel_.sequence(), /*peer=*/-1, limit};
  WaitContext extended = context;  // `ready` ends the wait at the limit, so that all missing ranks are named
  extended.limit += kSlack;
  const auto ready = [&] {
    return std::all_of(arrivals.begin(), arrivals.end(), has_arrived) ||
           std::chrono::steady_clock::now() - context.start >= limit;
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) {
    return peer == 0 || has_arrived(arrivals[size_t(peer - 1)]);
  };
  if (!ready()) channel_.wait_for({extended, channel_.control(0).doorbell, ready, tolerates_loss_of});

  std::string missing;
  int first = -1;
  for (const auto& arrival : arrivals) {
    if (has_arrived(arrival) || (first >= 0 && !name_all)) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", arrival->source);
    if (first < 0) first = arrival->source;
  }
  if (first >= 0) channel_.fail(context, first, "timed out waiting for ranks: " + missing + " [SW0324]");
}

}  // namespace shardwise::comm::shm
